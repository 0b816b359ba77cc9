#ifndef DTRUN_BENCH_TRAINING_STEP_H_
#define DTRUN_BENCH_TRAINING_STEP_H_

#include <dtrun/dtrun.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "models/layers/sequential.h"
#include "models/losses/sparse_categorical_crossentropy.h"
#include "models/networks/network.h"
#include "models/optim/rate_optimizer.h"
#include "models/train/gradient_tree.h"
#include "models/train/replica.h"

namespace dtrun::bench {

/// A network, and how many examples a step of it has. 0: see NetworkOptions and TrainingStep.
struct StepSettings {
  std::string model = "C";
  int image = 0, classes = 0;
  int batch = 0;
  int micro_batch = 0, micro_batches = 1;
};

models::Network NetworkOf(const StepSettings& settings);

/// The same made-up bytes in every run; their labels are 0, 1, 2 ... in turn.
struct Images {
  models::Shape shape;
  std::vector<uint8_t> pixels;
  std::vector<int32_t> labels;
};

Images MadeUpImages(const models::Network& network, int count);

/// A step as a rank takes it: images to floats, forward, loss, backward, reduction, optimizer. The
/// optimizer is that of the network's recipe; micro-batches are those of training unless the
/// settings say others.
class TrainingStep {
 public:
  /// With `leaves`, gradients are summed in a GradientTree of so many. `images` outlive it.
  TrainingStep(
      Context& job, const StepSettings& settings, const Images& images, DType dtype,
      std::optional<int> leaves = {});

  void Run();
  const models::Sequential& model() const { return model_; }

 private:
  models::Network network_;
  models::Sequential model_;
  std::unique_ptr<models::RateOptimizer> optimizer_;
  models::SparseCategoricalCrossentropy loss_;
  std::optional<models::GradientTree> tree_;
  std::optional<models::Replica> replica_;
  models::ReplicaBatch batch_;
};

}  // namespace dtrun::bench

#endif
