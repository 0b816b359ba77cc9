// A plain training loop that survives lost ranks. Usage: elastic STEPS FOLDER. Writes its process
// id to FOLDER/pid.RANK, where RANK is its launch number. The result does not depend on the number
// of ranks: all sums of gradients are exact. Counts in the trained state how often each example was
// used. Rank 0 prints
//   300 steps, digest 1234567890abcdef, each example 3 times
// When it loses ranks, a rank writes them and its operation to FOLDER/lost.RANK.
// FOLDER/slow: a step takes 20 ms instead of 2 ms. FOLDER/duplicates: before each step the ranks
// make communicators, which takes longer than the step. FOLDER/by_function: the values are kept by
// a function, in whose first call rank 2 is killed.

#include <dtrun/communicator.h>
#include <dtrun/context.h>
#include <dtrun/elastic.h>
#include <dtrun/error.h>
#include <dtrun/types.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

namespace programs::elastic {

constexpr uint64_t kExamples = 400, kBatch = 8, kWeights = 1000;

// A permutation of the examples: 7 has no common factor with 400.
uint64_t ExampleAt(uint64_t position) { return position * 7 % kExamples; }

// A multiple of 2^-20, so that sums of few such values below 1 are exact.
float Rounded(float value) { return std::nearbyint(value * 1048576.0f) / 1048576.0f; }

void NoteLoss(const std::string& path, const dtrun::Error& error) {
  std::ofstream file(path);
  for (const int rank : error.ranks()) file << rank << ' ';
  file << error.operation();
}

class Training {
 public:
  Training() : weights_(kWeights, 1.0f), gradient_(kWeights + kExamples), used_(kExamples) {}

  void Keep(dtrun::Elastic& elastic) {
    elastic.Keep("weights", dtrun::Buffer(weights_.data(), weights_.size()));
    elastic.Keep("used", dtrun::Buffer(used_.data(), used_.size()));
  }

  void KeepByFunction(dtrun::Elastic& elastic, const std::string& folder) {
    elastic.Keep([this, folder](dtrun::Communicator& ranks, int root) {
      const std::string died = folder + "/died";
      if (ranks.rank() == 2 && !std::ifstream(died).good()) {
        std::ofstream(died).flush();
        ::raise(SIGKILL);
      }
      ranks.Broadcast(dtrun::Buffer(weights_.data(), weights_.size()), root);
      ranks.Broadcast(dtrun::Buffer(used_.data(), used_.size()), root);
    });
  }

  // The gradient ends with one count for each example.
  void Step(dtrun::Context& job, uint64_t step) {
    std::fill(gradient_.begin(), gradient_.end(), 0.0f);
    const auto rank = static_cast<uint64_t>(job.rank()), size = static_cast<uint64_t>(job.size());
    const uint64_t first = step * kBatch + rank * kBatch / size;
    const uint64_t last = step * kBatch + (rank + 1) * kBatch / size;
    for (uint64_t i = first; i < last; ++i) {
      const uint64_t example = ExampleAt(i % kExamples);
      for (uint64_t w = 0; w < kWeights; ++w)
        gradient_[w] += Rounded(weights_[w] * 1e-3f * static_cast<float>((example * 31 + w) % 17));
      gradient_[kWeights + example] += 1;
    }
    job.world().AllReduce(dtrun::Buffer(gradient_.data(), gradient_.size()));
    for (uint64_t w = 0; w < kWeights; ++w) weights_[w] -= 1e-2f * gradient_[w];
    for (uint64_t i = 0; i < kExamples; ++i) used_[i] += gradient_[kWeights + i];
  }

  void Print(uint64_t steps) const {
    uint64_t digest = 14695981039346656037u;
    const auto* bytes = reinterpret_cast<const unsigned char*>(weights_.data());
    for (uint64_t i = 0; i < kWeights * sizeof(float); ++i)
      digest = (digest ^ bytes[i]) * 1099511628211u;
    const auto least_and_most = std::minmax_element(used_.begin(), used_.end());
    std::printf(
        "%llu steps, digest %016llx, each example ", static_cast<unsigned long long>(steps),
        static_cast<unsigned long long>(digest));
    if (*least_and_most.first == *least_and_most.second)
      std::printf("%g times\n", static_cast<double>(*least_and_most.first));
    else
      std::printf(
          "%g to %g times\n", static_cast<double>(*least_and_most.first),
          static_cast<double>(*least_and_most.second));
    std::fflush(stdout);
  }

 private:
  std::vector<float> weights_, gradient_, used_;
};

int Main(int argc, char** argv) {
  if (argc < 3) return 2;
  const uint64_t steps = std::strtoull(argv[1], nullptr, 10);
  const std::string folder = argv[2];
  const bool slow = std::ifstream(folder + "/slow").good();
  const bool duplicates = std::ifstream(folder + "/duplicates").good();
  dtrun::Elastic elastic;
  Training training;
  if (std::ifstream(folder + "/by_function").good())
    training.KeepByFunction(elastic, folder);
  else
    training.Keep(elastic);
  try {
    elastic.Run([&](dtrun::Context& job) {
      const char* const number = std::getenv("DTRUN_RANK");
      const std::string rank = number == nullptr ? std::to_string(job.rank()) : number;
      std::ofstream(folder + "/pid." + rank) << ::getpid() << '\n';
      for (; elastic.step() < steps; elastic.EndStep()) {
        for (int i = 0; duplicates && i < 10; ++i) job.world().Duplicate();
        try {
          training.Step(job, elastic.step());
        } catch (const dtrun::Error& error) {
          NoteLoss(folder + "/lost." + rank, error);
          throw;
        }
        ::usleep(slow ? 20'000 : 2'000);
        job.ReportProgress(elastic.step() + 1, 0);
        if (job.rank() == 0) std::ofstream(folder + "/step") << elastic.step() << '\n';
      }
      if (job.rank() == 0) training.Print(steps);
    });
  } catch (const dtrun::Error& error) {
    std::fprintf(stderr, "elastic: %s\n", error.what());
    return 76;
  }
  return 0;
}

}  // namespace programs::elastic
