// As a rank: 100 deterministic steps of a small network, some on ragged batches. Rank 0 writes the
// digest of the parameters and the losses to the file that the first argument names. The second
// argument: f32 or bf16.

#include <dtrun/dtrun.h>
#include <omp.h>

#include <cstdio>
#include <fstream>
#include <numeric>
#include <string>
#include <vector>

#include "models/data/sampling.h"
#include "models/layers/conv2d.h"
#include "models/layers/dense.h"
#include "models/layers/dropout.h"
#include "models/layers/max_pool2d.h"
#include "models/optim/adam.h"
#include "models/train/digest.h"
#include "models/train/step.h"

namespace {

using namespace dtrun::models;  // NOLINT: a program of one page

constexpr uint64_t kImages = 73, kGlobalBatch = 32, kSteps = 100;
constexpr int kLeaves = 8, kSide = 10, kClasses = 4;

Images MadeUpImages() {
  Images images;
  images.count = kImages;
  images.height = images.width = kSide;
  for (uint64_t i = 0; i < kImages * kSide * kSide; ++i)
    images.pixels.push_back(uint8_t((i + 1) * 2654435761u >> 24));
  for (uint64_t i = 0; i < kImages; ++i) images.labels.push_back(uint8_t(i % kClasses));
  return images;
}

LayerList SmallNetwork() {
  return Layers(
      Conv2D(16, 3, Activation::kRelu), MaxPool2D(2), Dropout(0.25), Dense(32, Activation::kRelu),
      Dropout(0.5), Dense(kClasses));
}

int Train(dtrun::Context& job, const std::string& path, dtrun::DType dtype) {
  const ChunkPlan plan = PlanChunks(GradientTree::LargestLeaf(kGlobalBatch, kLeaves));
  Sequential model(
      {kSide, kSide, 1}, SmallNetwork(), {plan.micro_batch, plan.micro_batches, 1, dtype});
  Adam adam(model.parameters(), {});
  dtrun::DistributedOptimizer optimizer(
      job.world(), adam, {.op = dtrun::ReduceOp::kSum, .bucket_bytes = 4096});
  GradientTree tree(model.parameters(), kLeaves, job);

  const Images images = MadeUpImages();
  std::vector<double> losses;
  for (uint64_t step = 0; step < kSteps; ++step) {
    const uint64_t epoch_step = step % BatchesPerEpoch(kImages, kGlobalBatch);
    const std::vector<uint32_t> order =
        EpochOrder(1, uint32_t(step / BatchesPerEpoch(kImages, kGlobalBatch)), kImages);
    const Range batch = GlobalBatch(epoch_step, kImages, kGlobalBatch);
    const Range mine = PartOf(batch, job.rank(), job.size());
    const Share share{
        std::span(order).subspan(mine.begin, mine.size()), uint32_t(mine.begin - batch.begin),
        batch.size(), step};
    const Tally tally =
        ComputeGradients(model, images, share, tree, [&](size_t i) { optimizer.MarkReady(i); });
    optimizer.Step();
    losses.push_back(tally.loss);
  }
  job.world().AllReduce(dtrun::Buffer(losses.data(), losses.size()));
  if (job.rank() != 0) return 0;
  std::ofstream file(path);
  file << ToHex(DigestOf(model.parameters())) << '\n' << std::hexfloat;
  for (double loss : losses) file << loss << '\n';
  return file.flush() ? 0 : 1;
}

}  // namespace

int main(int, char** argv) {
  omp_set_num_threads(1);
  dtrun::Context job = dtrun::Init();
  int result = 1;
  try {
    const bool bf16 = argv[2] == std::string("bf16");
    result = Train(job, argv[1], bf16 ? dtrun::DType::kBF16 : dtrun::DType::kF32);
  } catch (const dtrun::Error& error) {
    if (job.rank() == 0) std::fprintf(stderr, "%s\n", error.what());
  }
  job.Shutdown();
  return result;
}
