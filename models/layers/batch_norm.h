#ifndef DTRUN_MODELS_LAYERS_BATCH_NORM_H_
#define DTRUN_MODELS_LAYERS_BATCH_NORM_H_

#include <dtrun/communicator.h>
#include <dtrun/optimizer.h>

#include <memory>
#include <vector>

#include "models/layers/layer.h"

namespace dtrun::models {

/// Momentum and epsilon are Keras's; PyTorch's momentum is 1 minus this one.
struct BatchNormOptions {
  double momentum = 0.99;
  double epsilon = 1e-3;
  Activation activation = Activation::kNone;
  /// In training, means and variances are those of the global batch, over all ranks: two small
  /// all-reduces per step, one each way. Needs SequentialOptions::communicator.
  bool synchronized = false;
  /// What gamma starts with. 0 in the last normalisation of a residual block lets the block start
  /// as the identity: P. Goyal et al., "Accurate, large minibatch SGD", 2017, section 5.1.
  float initial_gamma = 1;
};

/// Normalises every channel over examples and pixels, in training by the mean and variance of the
/// rank's share of the batch (or of the global batch, see above), otherwise by moving averages of
/// them. S. Ioffe, C. Szegedy, ICML 2015.
///
///   y = act(gamma * (x - mean) / sqrt(variance + epsilon) + beta)
///   moving = momentum * moving + (1 - momentum) * that of the batch
///
/// Variances are those of the population, divided by the number of values; so are the moving ones.
///
/// Parameters: gamma (channels), beta (channels). Buffers: moving_mean (channels), moving_variance
/// (channels). Without synchronisation every rank has moving averages of its own shares: before
/// evaluating or saving, take those of one rank (BroadcastBuffers), as PyTorch does, or their mean
/// (AverageBuffers), as Keras does.
///
/// Needs the whole share of a rank in one pass: see SequentialOptions. A batch without a single
/// value changes nothing.
class BatchNorm : public Layer {
 public:
  explicit BatchNorm(const BatchNormOptions& options = {});
  ~BatchNorm() override;
  BatchNorm(BatchNorm&&) noexcept;

  std::string kind() const override { return "batch_norm"; }
  std::string description() const override;
  LayerSettings settings() const override;
  Shape OutputShape(const Shape& input) const override;
  std::vector<ParameterSpec> ParameterSpecs(const Shape& input) const override;
  std::vector<ParameterSpec> BufferSpecs(const Shape& input) const override;
  bool needs_whole_share() const override { return true; }
  bool synchronizes() const override { return options_.synchronized; }
  /// Throws Error kInvalidArgument when it is to synchronise and there is no communicator.
  Tensor* BuildForward(Builder& builder, Tensor* input) override;
  void BuildBackward(Builder& builder, bool input_gradient) override;
  bool TakeSum(const Tensor& term, bool relu) override;
  /// Throws what Communicator::AllReduce does, when synchronised.
  void Forward(const Pass& pass) override;
  void BackwardWeights(const Pass& pass) override;
  void BackwardData(const Pass& pass) override;

 private:
  struct Impl;

  BatchNormOptions options_;
  std::unique_ptr<Impl> impl_;
};

/// Makes the buffers of all ranks equal: each the mean over the ranks. For the moving averages of a
/// BatchNorm that is not synchronised, before all ranks evaluate or one saves them. Collective.
inline void AverageBuffers(Communicator& communicator, const std::vector<NamedBuffer>& buffers) {
  std::vector<Work> works;
  for (const NamedBuffer& buffer : buffers)
    works.push_back(communicator.StartAllReduce(buffer.buffer, ReduceOp::kAverage));
  for (Work& work : works) work.Wait();
}

}  // namespace dtrun::models

#endif  // DTRUN_MODELS_LAYERS_BATCH_NORM_H_
