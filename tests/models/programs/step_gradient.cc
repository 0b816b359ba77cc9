// The program of a rank: network C's gradient of one global batch with dropout, summed over the
// ranks. Rank 0 writes the gradient to the file in the first argument.

#include <dtrun/context.h>
#include <dtrun/distributed_optimizer.h>
#include <dtrun/optimizer.h>
#include <dtrun/types.h>
#include <omp.h>

#include <fstream>
#include <numeric>
#include <vector>

#include "models/data/sampling.h"
#include "models/networks/network.h"
#include "tests/models/image_step.h"

namespace programs::step_gradient {

using namespace dtrun::models;  // NOLINT: a program of one page

constexpr uint64_t kGlobalBatch = 50;

Images MadeUpImages() {
  Images images;
  images.count = kGlobalBatch;
  images.height = images.width = 28;
  for (uint64_t i = 0; i < kGlobalBatch * 28 * 28; ++i)
    images.pixels.push_back(uint8_t((i + 1) * 2654435761u >> 24));
  for (uint64_t i = 0; i < kGlobalBatch; ++i) images.labels.push_back(uint8_t(i % 10));
  return images;
}

// An optimizer that only records its gradients.
class Observer : public dtrun::Optimizer {
 public:
  explicit Observer(std::vector<dtrun::Parameter>& parameters) : parameters_(parameters) {}
  std::vector<dtrun::Parameter>& parameters() override { return parameters_; }
  std::vector<dtrun::NamedBuffer> state() override { return {}; }
  void Step() override {
    for (const dtrun::Parameter& parameter : parameters_) {
      const auto* gradient = static_cast<const float*>(parameter.gradient.data);
      seen.insert(seen.end(), gradient, gradient + parameter.gradient.count);
    }
  }

  std::vector<float> seen;

 private:
  std::vector<dtrun::Parameter>& parameters_;
};

int Main(int, char** argv) {
  omp_set_num_threads(1);
  dtrun::Context job = dtrun::Init();
  Sequential model({28, 28, 1}, NetworkC(10), {.micro_batch = 4, .micro_batches = 2, .seed = 1});
  Observer observer(model.parameters());
  dtrun::DistributedOptimizer optimizer(
      job.world(), observer, {.op = dtrun::ReduceOp::kSum, .bucket_bytes = 1 << 20});

  const Images images = MadeUpImages();
  std::vector<uint32_t> examples(kGlobalBatch);
  std::iota(examples.begin(), examples.end(), 0);
  const Range mine = PartOf({0, kGlobalBatch}, job.rank(), job.size());
  const Share share{
      std::span(examples).subspan(mine.begin, mine.size()), uint32_t(mine.begin), kGlobalBatch, 7};
  ComputeGradients(model, images, share, [&](size_t i) { optimizer.MarkReady(i); });
  optimizer.Step();

  if (job.rank() == 0) {
    std::ofstream file(argv[1], std::ios::binary);
    file.write(
        reinterpret_cast<const char*>(observer.seen.data()),
        std::streamsize(observer.seen.size() * sizeof(float)));
  }
  job.Shutdown();
  return 0;
}

}  // namespace programs::step_gradient
