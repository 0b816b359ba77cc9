// A training loop with a ShardedOptimizer that survives lost ranks. Usage: elastic_sharded STEPS
// FOLDER [EVERY [one_copy]]. Writes process ids and the step as tests/ranks/elastic does. The
// result does not depend on the number of ranks. Rank 0 prints
//   300 steps, digest 1234567890abcdef, 1200 examples
// Ranks say on stderr from which step on they go.

#include <dtrun/context.h>
#include <dtrun/elastic.h>
#include <dtrun/error.h>
#include <dtrun/optimizer.h>
#include <dtrun/sharded_optimizer.h>
#include <dtrun/sliceable_optimizer.h>
#include <dtrun/types.h>
#include <unistd.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

namespace programs::elastic_sharded {

constexpr uint64_t kBatch = 4;

class Momentum : public dtrun::SliceableOptimizer {
 public:
  Momentum() {
    for (const size_t count : {3, 40'001, 1, 500}) {
      values_.emplace_back(count, 1.0f);
      list_.push_back(
          {"p" + std::to_string(list_.size()),
           {values_.back().data(), count},
           {nullptr, count, dtrun::DType::kF32}});
    }
  }
  std::vector<dtrun::Parameter>& parameters() override { return list_; }
  std::vector<dtrun::StateSlot> slots() const override {
    return {{"momentum"}, {"steps", dtrun::DType::kI64}};
  }
  std::vector<dtrun::NamedBuffer> scalars() override { return {{"steps", {&steps_, 1}}}; }
  void BeginStep() override { ++steps_; }
  void StepSlice(const dtrun::ParameterSlice& slice) override {
    for (uint64_t k = 0; k < slice.count; ++k) {
      float& momentum = static_cast<float*>(slice.slots[0])[k];
      momentum = momentum / 2 + static_cast<const float*>(slice.gradient)[k];
      static_cast<float*>(slice.value)[k] -= momentum / static_cast<float>(8 + steps_);
      static_cast<int64_t*>(slice.slots[1])[k] += steps_;
    }
  }

  // The sum over the examples of this rank, in multiples of 2^-20, so that all sums are exact.
  void Backward(uint64_t first, uint64_t last) {
    for (dtrun::Parameter& parameter : list_)
      for (uint64_t k = 0; k < parameter.gradient.count; ++k) {
        const float value = static_cast<float*>(parameter.value.data)[k];
        float sum = 0;
        for (uint64_t i = first; i < last; ++i)
          sum += std::nearbyint(value * static_cast<float>((i * 31 + k) % 17) * 1024) / 1048576;
        static_cast<float*>(parameter.gradient.data)[k] = sum;
      }
  }

 private:
  std::vector<std::vector<float>> values_;
  std::vector<dtrun::Parameter> list_;
  int64_t steps_ = 0;
};

uint64_t Digest(uint64_t digest, const dtrun::Buffer& buffer) {
  const auto* bytes = static_cast<const unsigned char*>(buffer.data);
  for (uint64_t i = 0; i < buffer.bytes(); ++i) digest = (digest ^ bytes[i]) * 1099511628211u;
  return digest;
}

int Main(int argc, char** argv) {
  if (argc < 3) return 2;
  const uint64_t steps = std::strtoull(argv[1], nullptr, 10);
  const std::string folder = argv[2];
  const uint64_t every = argc > 3 ? std::strtoull(argv[3], nullptr, 10) : 1;
  dtrun::ShardedOptions options;
  options.op = dtrun::ReduceOp::kSum;
  options.one_copy_per_host = argc > 4;
  dtrun::Elastic elastic;
  Momentum momentum;
  uint64_t examples = 0;
  elastic.Keep("examples", dtrun::Buffer(&examples, 1));
  try {
    elastic.Run([&](dtrun::Context& job) {
      const char* const number = std::getenv("DTRUN_RANK");
      const std::string name = number == nullptr ? std::to_string(job.rank()) : number;
      std::ofstream(folder + "/pid." + name) << ::getpid() << '\n';
      dtrun::ShardedOptimizer optimizer(job.world(), momentum, options);
      elastic.Keep(optimizer, every);
      if (elastic.step() > 0)
        std::fprintf(
            stderr, "rank %s goes on from step %llu\n", name.c_str(),
            static_cast<unsigned long long>(elastic.step()));
      const auto rank = static_cast<uint64_t>(job.rank()), size = static_cast<uint64_t>(job.size());
      for (; elastic.step() < steps; elastic.EndStep()) {
        const uint64_t first = elastic.step() * kBatch;
        momentum.Backward(first + rank * kBatch / size, first + (rank + 1) * kBatch / size);
        optimizer.Step();
        examples += kBatch;
        ::usleep(2'000);
        job.ReportProgress(elastic.step() + 1, 0);
        if (job.rank() == 0) std::ofstream(folder + "/step") << elastic.step() << '\n';
      }
      uint64_t digest = 14695981039346656037u;
      for (const dtrun::Parameter& parameter : optimizer.parameters())
        digest = Digest(digest, parameter.value);
      for (dtrun::StateBuffer& state : optimizer.ExportState())
        digest = Digest(digest, state.buffer());
      if (job.rank() == 0)
        std::printf(
            "%llu steps, digest %016llx, %llu examples\n", static_cast<unsigned long long>(steps),
            static_cast<unsigned long long>(digest), static_cast<unsigned long long>(examples));
      std::fflush(stdout);
    });
  } catch (const dtrun::Error& error) {
    std::fprintf(stderr, "elastic_sharded: %s\n", error.what());
    return 76;
  }
  return 0;
}

}  // namespace programs::elastic_sharded
