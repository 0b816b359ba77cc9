#ifndef DTRUN_MODELS_LAYERS_BATCH_NORM_H_
#define DTRUN_MODELS_LAYERS_BATCH_NORM_H_

#include <dtrun/communicator.h>
#include <dtrun/optimizer.h>

#include <memory>
#include <vector>

#include "models/layers/layer.h"

namespace dtrun::models {

/// The defaults of momentum and epsilon are Keras's. PyTorch's momentum is 1 minus this momentum.
struct BatchNormOptions {
  double momentum = 0.99;
  double epsilon = 1e-3;
  Activation activation = Activation::kNone;
  /// In training, uses the means and variances of the global batch, over all ranks. Costs two small
  /// all-reduces per step, one per direction. Needs SequentialOptions::communicator.
  bool synchronized = false;
  /// Initial value of gamma. With 0 in its last normalisation, a residual block starts as the
  /// identity: P. Goyal et al., "Accurate, large minibatch SGD", 2017, section 5.1.
  float initial_gamma = 1;
};

/// Normalises each channel over examples and pixels. In training, uses the mean and variance of the
/// rank's share of the batch, or of the global batch if `synchronized`. Outside training, uses
/// their moving averages. S. Ioffe, C. Szegedy, ICML 2015.
///
///   y = act(gamma * (x - mean) / sqrt(variance + epsilon) + beta)
///   moving = momentum * moving + (1 - momentum) * statistic of the batch
///
/// All variances, also the moving variances, are population variances: divided by the number of
/// values.
///
/// Parameters: gamma (channels), beta (channels). Buffers: moving_mean (channels), moving_variance
/// (channels). Without synchronisation, the moving averages differ between ranks, because each rank
/// sees only its shares. Before you evaluate or save, copy the averages of one rank to all ranks
/// (BroadcastBuffers), as PyTorch does, or compute their mean (AverageBuffers), as Keras does.
///
/// Needs the whole share of a rank in one pass: see SequentialOptions. An empty batch does not
/// change the moving averages.
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
  size_t Describe(NetworkGraph& graph, size_t input) const override;
  /// Throws Error kInvalidArgument if `synchronized` is set and there is no communicator.
  Tensor* BuildForward(Builder& builder, Tensor* input) override;
  void BuildBackward(Builder& builder, bool input_gradient) override;
  bool TakeSum(const Tensor& term, bool relu) override;
  /// If `synchronized` is set, throws the errors of Communicator::AllReduce.
  void Forward(const Pass& pass) override;
  void BackwardWeights(const Pass& pass) override;
  void BackwardData(const Pass& pass) override;

 private:
  struct Impl;

  BatchNormOptions options_;
  std::unique_ptr<Impl> impl_;
};

/// Sets each buffer on all ranks to its mean over the ranks. Collective. Call it for the moving
/// averages of a BatchNorm that is not synchronised, before all ranks evaluate or one rank saves.
inline void AverageBuffers(Communicator& communicator, const std::vector<NamedBuffer>& buffers) {
  std::vector<Work> works;
  for (const NamedBuffer& buffer : buffers)
    works.push_back(communicator.StartAllReduce(buffer.buffer, ReduceOp::kAverage));
  for (Work& work : works) work.Wait();
}

}  // namespace dtrun::models

#endif  // DTRUN_MODELS_LAYERS_BATCH_NORM_H_
