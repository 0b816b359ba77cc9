// The program of a rank: 100 deterministic steps of a small network. Every third batch has fewer
// examples than the tree has leaves. Rank 0 writes the digest of the parameters and the losses to
// the file in the first argument. The second argument is f32 or bf16.

#include <dtrun/communicator.h>
#include <dtrun/context.h>
#include <dtrun/error.h>
#include <dtrun/metrics.h>
#include <dtrun/types.h>
#include <omp.h>

#include <cstdio>
#include <fstream>
#include <numeric>
#include <string>
#include <vector>

#include "models/data/sampling.h"
#include "models/layers/activations.h"
#include "models/layers/conv2d.h"
#include "models/layers/dense.h"
#include "models/layers/pooling.h"
#include "models/losses/loss.h"
#include "models/optim/adam.h"
#include "models/train/agreement.h"
#include "models/train/batch.h"
#include "models/train/gradient_tree.h"
#include "models/train/steps.h"

namespace programs::deterministic_steps {

using namespace dtrun::models;  // NOLINT: a program of one page

constexpr uint64_t kImages = 69, kGlobalBatch = 32, kSteps = 100;
constexpr int kLeaves = 8, kSide = 10, kClasses = 4;

// A pixel of image `i`, computed and not read from a file.
float PixelOf(uint64_t i, uint64_t pixel) {
  return float(uint8_t((i * kSide * kSide + pixel + 1) * 2654435761u >> 24)) / 255;
}

// This rank's share of a global batch.
class MadeUpBatch {
 public:
  MadeUpBatch(uint64_t step, const dtrun::Context& job) {
    const uint64_t steps = BatchesPerEpoch(kImages, kGlobalBatch);
    const std::vector<uint32_t> order = EpochOrder(1, step / steps, kImages);
    const Range global = GlobalBatch(step % steps, kImages, kGlobalBatch);
    const Range mine = PartOf(global, job.rank(), job.size());
    images_.assign(order.begin() + int64_t(mine.begin), order.begin() + int64_t(mine.end));
    for (uint32_t image : images_) labels_.push_back(int32_t(image % kClasses));
    view.examples = mine.size();
    view.first_position = uint32_t(mine.begin - global.begin);
    view.global_batch = global.size();
    view.targets.labels = labels_;
    view.write_inputs = [this](size_t first, size_t count, float* inputs) {
      for (size_t i = first; i < first + count; ++i) {
        for (uint64_t pixel = 0; pixel < kSide * kSide; ++pixel)
          *inputs++ = PixelOf(images_[i], pixel);
      }
    };
  }
  MadeUpBatch(const MadeUpBatch&) = delete;
  MadeUpBatch& operator=(const MadeUpBatch&) = delete;

  ReplicaBatch view;

 private:
  std::vector<uint32_t> images_;
  std::vector<int32_t> labels_;
};

LayerList SmallNetwork() {
  return Layers(
      Conv2D(16, 3, Activation::kRelu), MaxPool2D(2), Dropout(0.25), Dense(32, Activation::kRelu),
      Dropout(0.5), Dense(kClasses, DenseOptions{.kernel_l2 = 0.01}));
}

int Train(dtrun::Context& job, const std::string& path, dtrun::DType dtype) {
  const ChunkPlan plan = PlanChunks(GradientTree::LargestLeaf(kGlobalBatch, kLeaves));
  Sequential model(
      {kSide, kSide, 1}, SmallNetwork(), {plan.micro_batch, plan.micro_batches, 1, dtype});
  Adam adam(model.parameters(), {});
  GradientTree tree(model.parameters(), kLeaves, job);
  Replica replica(job.world(), model, adam, {.tree = &tree});
  const SparseCategoricalCrossentropy loss;
  std::vector<double> losses;
  for (uint64_t step = 0; step < kSteps; ++step) {
    const MadeUpBatch batch(step, job);
    losses.push_back(TrainStep(replica, batch.view, loss, {}));
  }
  job.world().AllReduce(dtrun::Buffer(losses.data(), losses.size()));
  if (job.rank() != 0) return 0;
  std::ofstream file(path);
  file << ToHex(DigestOf(model.parameters())) << '\n' << std::hexfloat;
  for (double value : losses) file << value << '\n';
  return file.flush() ? 0 : 1;
}

int Main(int, char** argv) {
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

}  // namespace programs::deterministic_steps
