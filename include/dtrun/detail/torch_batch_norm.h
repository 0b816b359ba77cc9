#ifndef DTRUN_DETAIL_TORCH_BATCH_NORM_H_
#define DTRUN_DETAIL_TORCH_BATCH_NORM_H_

#include <dtrun/detail/torch_collectives.h>
#include <torch/library.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

// Batch norm over the global batch. Each rank sends the count, the mean and the variance of its own
// values per channel, in f64; all ranks combine them in rank order (Chan, Golub and LeVeque, 1979),
// so that all ranks get the same bits. The backward pass adds up two sums per channel.

namespace dtrun {
namespace torch {
namespace internal {

/// The ranks of synchronised batch norms, with a communicator of their own: its operations run in
/// the middle of a backward pass, while gradients are reduced.
struct NormRanks : ::torch::CustomClassHolder {
  explicit NormRanks(Communicator& all) : communicator(all.Duplicate()) {}
  Communicator communicator;
};

/// The arguments of a batch norm other than its input and its parameters.
struct NormSettings {
  Tensor running_mean, running_variance;  ///< undefined: not tracked
  double momentum = 0, epsilon = 0;
};

/// The dimensions of an input. Dimension 1 has the channels.
struct NormChannels {
  explicit NormChannels(const Tensor& x)
      : count(x.size(1)), shape(static_cast<size_t>(x.dim()), 1) {
    shape[1] = count;
    for (int64_t d = 0; d < x.dim(); ++d)
      if (d != 1) others.push_back(d);
  }
  /// Values by channel, to be combined with an input.
  Tensor Spread(const Tensor& values) const { return values.reshape(shape); }

  int64_t count;
  std::vector<int64_t> shape, others;
};

/// (x - mean) / sqrt(variance + epsilon), in f32 or f64.
class SyncedNorm : public ::torch::autograd::Function<SyncedNorm> {
 public:
  static Tensor forward(
      ::torch::autograd::AutogradContext* context, const Tensor& x, const NormSettings& settings,
      const c10::intrusive_ptr<NormRanks>& ranks) {
    const NormChannels channels(x);
    const Tensor all = Statistics(x, channels, ranks->communicator);
    const Tensor counts = all.slice(1, 0, 1), means = all.slice(1, 1, 1 + channels.count);
    const Tensor count = counts.sum();
    if (count.is_cpu() && count.item<double>() < 2) {
      Refuse(
          ErrorCode::kInvalidArgument,
          "batch norm of all ranks: found one value per channel on all ranks together; expected 2 "
          "or more");
    }
    const Tensor mean = (counts * means).sum(0) / count;
    const Tensor variance =
        (counts * (all.slice(1, 1 + channels.count) + (means - mean).square())).sum(0) / count;
    Track(settings.running_mean, mean, settings.momentum);
    Track(settings.running_variance, variance * (count / (count - 1)), settings.momentum);
    const Tensor scale = channels.Spread((variance + settings.epsilon).rsqrt().to(x.scalar_type()));
    const Tensor y = (x - channels.Spread(mean.to(x.scalar_type()))) * scale;
    context->save_for_backward({y, scale, count});
    context->saved_data["ranks"] = c10::IValue::make_capsule(ranks);
    return y;
  }

  static ::torch::autograd::variable_list backward(
      ::torch::autograd::AutogradContext* context, ::torch::autograd::variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const Tensor &y = saved[0], &scale = saved[1], &count = saved[2], &dy = gradients[0];
    const auto ranks =
        c10::static_intrusive_pointer_cast<NormRanks>(context->saved_data["ranks"].toCapsule());
    const NormChannels channels(dy);
    const Tensor sums =
        ::torch::stack({dy.sum(channels.others), (dy * y).sum(channels.others)}).to(at::kDouble);
    AllReduce(ranks->communicator, sums);
    const Tensor means = (sums / count).to(dy.scalar_type());
    const Tensor dx = (dy - channels.Spread(means[0]) - y * channels.Spread(means[1])) * scale;
    return {dx, Tensor(), Tensor()};
  }

 private:
  // By rank: the count, the means and the variances of the channels.
  static Tensor Statistics(
      const Tensor& x, const NormChannels& channels, Communicator& communicator) {
    const auto options = x.options().dtype(at::kDouble).requires_grad(false);
    const int64_t values = x.numel() / std::max<int64_t>(channels.count, 1);
    Tensor mine = ::torch::zeros({1, 1 + 2 * channels.count}, options);
    if (values > 0) {
      const auto found = at::var_mean(x, channels.others, /*unbiased=*/false);
      mine = ::torch::cat({::torch::full({1}, static_cast<double>(values), options),
                           std::get<1>(found).to(at::kDouble), std::get<0>(found).to(at::kDouble)})
                 .unsqueeze(0);
    }
    const Staged staged("batch norm of all ranks: the statistics", mine);
    const Tensor all = ::torch::empty({communicator.size(), mine.size(1)}, options);
    communicator.AllGather(staged.buffer(), OutputOf(staged, all));
    staged.lane().Leave();
    return all;
  }

  static void Track(const Tensor& running, const Tensor& now, double momentum) {
    if (running.defined()) running.mul_(1 - momentum).add_(now.to(running.scalar_type()), momentum);
  }
};

inline void CheckNormInput(const Tensor& input) {
  if (input.dim() >= 2) return;
  Refuse(
      ErrorCode::kInvalidArgument, "batch norm of all ranks: the input is ", input.sizes(),
      "; expected 2 or more dimensions, with the channels in dimension 1");
}

inline Tensor SyncedBatchNorm(
    const Tensor& input, const Tensor& weight, const Tensor& bias, const NormSettings& settings,
    const c10::intrusive_ptr<NormRanks>& ranks) {
  CheckNormInput(input);
  // 16-bit values are computed in f32.
  const bool is_narrow = input.scalar_type() == at::kHalf || input.scalar_type() == at::kBFloat16;
  const Tensor x = is_narrow ? input.to(at::kFloat) : input;
  const NormChannels channels(x);
  const Tensor y = SyncedNorm::apply(x, settings, ranks);
  // The caller may change the result in place, but not what the backward pass has kept.
  if (!weight.defined()) return is_narrow ? y.to(input.scalar_type()) : y.clone();
  const Tensor scaled = y * channels.Spread(weight) + channels.Spread(bias);
  return scaled.to(input.scalar_type());
}

/// The batch norms of converted models. Every batch norm of LibTorch is a call of one operator,
/// with the parameters of its module. A kernel of this class takes the call's place: it recognises
/// converted modules by their tensors and leaves all other calls to LibTorch. Thread-safe.
class ConvertedNorms {
 public:
  using Key = const at::TensorImpl*;

  /// Never destroyed: kernels stay until the process ends.
  static ConvertedNorms& Get() {
    static auto* const norms = new ConvertedNorms;
    return *norms;
  }

  struct Norm {
    const ::torch::nn::Module* module = nullptr;
    c10::intrusive_ptr<NormRanks> ranks = {};
  };

  void Add(Key key, Norm norm) {
    const std::lock_guard<std::mutex> lock(mutex_);
    norms_[key] = std::move(norm);
  }
  void Remove(Key key) {
    const std::lock_guard<std::mutex> lock(mutex_);
    norms_.erase(key);
  }
  /// The ranks of the module that has one of the tensors. Null unless it is converted and trains.
  c10::intrusive_ptr<NormRanks> Find(const Tensor& weight, const Tensor& running_mean) {
    const std::lock_guard<std::mutex> lock(mutex_);
    auto found = norms_.find(weight.unsafeGetTensorImpl());
    if (found == norms_.end()) found = norms_.find(running_mean.unsafeGetTensorImpl());
    const bool trains = found != norms_.end() && found->second.module->is_training();
    return trains ? found->second.ranks : c10::intrusive_ptr<NormRanks>();
  }

 private:
  // The type of an optional tensor differs between versions of LibTorch.
  template <typename Schema>
  struct Kernel;
  template <typename Maybe>
  struct Kernel<Tensor(
      const Tensor&, const Maybe&, const Maybe&, const Maybe&, const Maybe&, bool, double, double,
      bool)> {
    static Tensor Call(
        const Tensor& input, const Maybe& weight, const Maybe& bias, const Maybe& running_mean,
        const Maybe& running_variance, bool training, double momentum, double epsilon,
        bool cudnn_enabled) {
      const Tensor scale = Value(weight), mean = Value(running_mean);
      const auto ranks = training ? Get().Find(scale, mean) : c10::intrusive_ptr<NormRanks>();
      if (ranks == nullptr) {
        return at::native::batch_norm(
            input, weight, bias, running_mean, running_variance, training, momentum, epsilon,
            cudnn_enabled);
      }
      return SyncedBatchNorm(
          input, scale, Value(bias), {mean, Value(running_variance), momentum, epsilon}, ranks);
    }
    static Tensor Value(const Maybe& tensor) { return tensor ? *tensor : Tensor(); }
  };

  ConvertedNorms() : library_(::torch::Library::IMPL, "aten", c10::nullopt, __FILE__, __LINE__) {
    using Hook = Kernel<at::_ops::batch_norm::schema>;
    for (const auto key : {c10::DispatchKey::AutogradCPU, c10::DispatchKey::AutogradCUDA})
      library_.impl("batch_norm", ::torch::dispatch(key, TORCH_FN(&Hook::Call)));
  }

  std::mutex mutex_;
  std::map<Key, Norm> norms_;
  ::torch::Library library_;
};

}  // namespace internal

/// Makes the batch norms of a model (BatchNorm1d, 2d and 3d, at any depth) normalise by the mean
/// and the variance of the global batch, while this object lives. In training, the gradients and
/// the running statistics are those of one process on the global batch, whose parts may differ in
/// size between the ranks. In evaluation, and for other models, nothing changes. The model needs no
/// other modules, and its saved files stay the same.
///
///   dtrun::torch::SyncBatchNorms synced(world, *model);
///   dtrun::torch::DistributedOptimizer optimizer(world, adam, *model);
///
/// All ranks call the model, and its backward pass, equally often. LibTorch asks for 2 or more
/// values per channel on each rank. Errors (dtrun::Error) come from the call of the model and
/// from `backward()`. On CPUs and GPUs.
class SyncBatchNorms {
 public:
  /// Collective. Errors: kInvalidArgument (names a batch norm with neither parameters nor running
  /// statistics, or says that the model has no batch norm).
  SyncBatchNorms(Communicator& communicator, const ::torch::nn::Module& model) {
    std::string refusal;
    Look("", model, refusal);
    for (const auto& item : model.named_modules(std::string(), /*include_self=*/false))
      Look(item.key(), *item.value(), refusal);
    if (norms_.empty() && refusal.empty()) refusal = "the model has no BatchNorm1d, 2d or 3d";
    internal::AgreeOn(
        communicator, "sync_batch_norms",
        {internal::Text(norms_.size(), " batch norms", refusal.empty() ? "" : ", one refused")});
    if (!refusal.empty())
      internal::Refuse(ErrorCode::kInvalidArgument, "sync_batch_norms: ", refusal);
    const auto ranks = c10::make_intrusive<internal::NormRanks>(communicator);
    for (const Norm& norm : norms_)
      internal::ConvertedNorms::Get().Add(norm.key.unsafeGetTensorImpl(), {norm.module, ranks});
  }
  ~SyncBatchNorms() {
    for (const Norm& norm : norms_)
      internal::ConvertedNorms::Get().Remove(norm.key.unsafeGetTensorImpl());
  }
  SyncBatchNorms(const SyncBatchNorms&) = delete;
  SyncBatchNorms& operator=(const SyncBatchNorms&) = delete;

  /// The number of batch norms of the model.
  size_t size() const { return norms_.size(); }

 private:
  struct Norm {
    const ::torch::nn::Module* module;
    Tensor key;  // by which calls of the module are recognised
  };

  void Look(const std::string& name, const ::torch::nn::Module& module, std::string& refusal) {
    LookFor<::torch::nn::BatchNorm1dImpl>(name, module, refusal);
    LookFor<::torch::nn::BatchNorm2dImpl>(name, module, refusal);
    LookFor<::torch::nn::BatchNorm3dImpl>(name, module, refusal);
  }

  template <typename Impl>
  void LookFor(const std::string& name, const ::torch::nn::Module& module, std::string& refusal) {
    const auto* norm = dynamic_cast<const Impl*>(&module);
    if (norm == nullptr) return;
    const Tensor key = norm->weight.defined() ? norm->weight : norm->running_mean;
    if (key.defined()) {
      norms_.push_back({norm, key});
    } else {
      refusal = internal::Text(
          "module '", name,
          "' has neither parameters nor running statistics, so that its calls cannot be "
          "recognised; expected affine(true) or track_running_stats(true)");
    }
  }

  std::vector<Norm> norms_;
};

/// A batch norm over the global batch as a module of its own, for inputs of 2 or more dimensions.
/// Parameters, buffers and results are those of LibTorch's batch norm: see SyncBatchNorms.
class SyncBatchNormImpl
    : public ::torch::nn::NormImplBase<2, SyncBatchNormImpl, ::torch::nn::BatchNormOptions> {
 public:
  /// Collective: the ranks duplicate the communicator.
  SyncBatchNormImpl(Communicator& communicator, const ::torch::nn::BatchNormOptions& settings)
      : NormImplBase(settings), ranks_(c10::make_intrusive<internal::NormRanks>(communicator)) {}

  /// In training: normalises by the statistics of the inputs of all ranks. Collective.
  Tensor forward(const Tensor& input) {
    _check_input_dim(input);
    double momentum = options.momentum().value_or(0);
    if (is_training() && num_batches_tracked.defined()) {
      num_batches_tracked += 1;
      if (!options.momentum()) momentum = 1 / num_batches_tracked.to(at::kDouble).item<double>();
    }
    if (is_training()) {
      return internal::SyncedBatchNorm(
          input, weight, bias, {running_mean, running_var, momentum, options.eps()}, ranks_);
    }
    return ::torch::batch_norm(
        input, weight, bias, running_mean, running_var, !options.track_running_stats(), momentum,
        options.eps(), /*cudnn_enabled=*/true);
  }

 protected:
  /// Throws Error kInvalidArgument unless the input has 2 or more dimensions.
  void _check_input_dim(const Tensor& input) override { internal::CheckNormInput(input); }

 private:
  c10::intrusive_ptr<internal::NormRanks> ranks_;
};
/// The holder of a SyncBatchNormImpl, as of LibTorch's modules.
class SyncBatchNorm : public ::torch::nn::ModuleHolder<SyncBatchNormImpl> {
 public:
  using ModuleHolder::ModuleHolder;
};

}  // namespace torch
}  // namespace dtrun

#endif  // DTRUN_DETAIL_TORCH_BATCH_NORM_H_
