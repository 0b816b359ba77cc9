#ifndef DTRUN_MODELS_SYNTHETIC_MADE_UP_STEPS_H_
#define DTRUN_MODELS_SYNTHETIC_MADE_UP_STEPS_H_

#include <dtrun/dtrun.h>

#include <cstdint>
#include <vector>

#include "models/layers/sequential.h"
#include "models/networks/network.h"
#include "models/optim/sgd.h"

namespace dtrun::models {

/// Training steps of a network on one batch of random images and labels per rank, by SGD with a
/// rate of 0.01: what a step costs, without any input. Not thread-safe.
class MadeUpSteps {
 public:
  /// Collective: all ranks start from rank 0's parameters. `world` outlives it. Throws Error
  /// kInvalidArgument when the network cannot be built.
  MadeUpSteps(Communicator& world, Network network, uint64_t batch_size, bool overlap);

  size_t parameter_count() const { return model_.parameter_count(); }
  /// Collective: `count` optimizer steps. Returns the sum of this rank's losses in the last one.
  double Run(uint64_t count);

 private:
  double Step();
  void FillWithNoise();

  uint64_t batch_size_;
  double global_batch_;
  double regularization_scale_;
  bool overlap_;
  Sequential model_;
  Sgd sgd_;
  DistributedOptimizer optimizer_;
  std::vector<uint8_t> labels_;
  uint64_t step_ = 0;
};

}  // namespace dtrun::models

#endif
