#ifndef DTRUN_DETAIL_TORCH_CHECKPOINT_H_
#define DTRUN_DETAIL_TORCH_CHECKPOINT_H_

#include <dtrun/checkpoint.h>
#include <dtrun/detail/torch_sharded.h>
#include <dtrun/detail/torch_state.h>
#include <dtrun/detail/torch_tensors.h>
#include <dtrun/objects.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace dtrun {
namespace torch {

/// The checkpoints of a model and its optimizer in one folder: dtrun::CheckpointManager with the
/// tensors of LibTorch. A checkpoint has the parameters and buffers of the module under their names
/// in the module, and the optimizer as bytes. Python reads the model with safetensors, and
/// `load_state_dict` takes it after `pop("libtorch.optimizer")`.
///
///   dtrun::torch::CheckpointManager checkpoints(job.world(), "saved", *model, optimizer);
///   const dtrun::Loaded loaded = checkpoints.Load();  // no checkpoint: does nothing
///   int64_t step = loaded.checkpoint ? loaded.checkpoint->step : 0;
///   ...
///   checkpoints.StartSave({step});                    // writes while training continues
///   ...
///   checkpoints.Wait();                               // before Shutdown
///
/// A checkpoint may be loaded by any number of ranks, on other devices, and by a model and an
/// optimizer of the same kind without this class's help. The optimizer is LibTorch's own, or a
/// DistributedOptimizer or ShardedOptimizer around it; a checkpoint of one fits the others. Model
/// and optimizer outlive this object. Rules of threads and errors: see dtrun::CheckpointManager.
class CheckpointManager {
 public:
  /// Creates the folder if it is missing, and locks it: see dtrun::CheckpointManager.
  CheckpointManager(
      Communicator& communicator, const std::string& folder, ::torch::nn::Module& model,
      ::torch::optim::Optimizer& optimizer, const CheckpointOptions& options = {})
      : communicator_(&communicator),
        model_(&model),
        optimizer_(&optimizer),
        checkpoints_(communicator, folder, options) {}

  /// Saves the values of rank 0: ranks that train together have the same values. When it returns,
  /// the checkpoint is on the disk. The metadata key "libtorch.optimizer_bytes" is taken.
  void Save(const SaveOptions& options = {}) {
    WithState(options, [this](const SaveOptions& told, const std::vector<NamedTensor>& tensors) {
      checkpoints_.Save(told, tensors);
    });
  }

  /// The same in a background thread. Returns when the values are copied.
  void StartSave(const SaveOptions& options = {}) {
    WithState(options, [this](const SaveOptions& told, const std::vector<NamedTensor>& tensors) {
      checkpoints_.StartSave(told, tensors);
    });
  }

  /// Waits for the save under way, and throws its error.
  void Wait() { checkpoints_.Wait(); }

  /// The checkpoints, oldest first: see dtrun::CheckpointManager.
  std::vector<Checkpoint> List() { return checkpoints_.List(); }

  /// Fills model and optimizer, on all ranks, from the newest valid checkpoint. Either both are
  /// filled or neither is. Throws kInvalidArgument for a checkpoint of another model or optimizer.
  Loaded Load(const LoadOptions& options = {}) {
    // Without tensors, dtrun only finds and checks the checkpoint, which tells the size of the
    // optimizer.
    LoadOptions find = options;
    find.allow_unexpected = true;
    Loaded loaded = checkpoints_.Load({}, find);
    if (!loaded.checkpoint) return loaded;
    LoadOptions load = options;
    load.name = loaded.checkpoint->name;
    load.best = false;
    std::string state(OptimizerBytes(*loaded.checkpoint), '\0');
    std::vector<Copied> values = CopiesOfModel();
    checkpoints_.Load(BuffersOf(values, state), load);
    try {
      internal::LoadOptimizer(*optimizer_, state);
    } catch (const c10::Error& error) {
      internal::Refuse(
          ErrorCode::kInvalidArgument, "the checkpoint '", loaded.checkpoint->name,
          "' has the state of another optimizer: ", error.what_without_backtrace());
    }
    ::torch::NoGradGuard no_grad;
    for (Copied& value : values) value.of.copy_(value.copy);
    loaded.checkpoint->metadata.erase(kBytesKey);
    return loaded;
  }

 private:
  static constexpr const char* kBytesKey = "libtorch.optimizer_bytes";
  static constexpr const char* kStateName = "libtorch.optimizer";

  // A parameter or buffer, and its copy in host memory.
  struct Copied {
    std::string name;
    ::torch::Tensor of, copy;
  };

  std::vector<Copied> CopiesOfModel() const {
    std::vector<Copied> values;
    const auto add = [&](const ::torch::OrderedDict<std::string, ::torch::Tensor>& tensors) {
      for (const auto& item : tensors) {
        const ::torch::Tensor& tensor = item.value();
        internal::CheckedDType(item.key(), tensor);
        values.push_back(
            {item.key(), tensor,
             tensor.detach()
                 .to(::torch::kCPU, /*non_blocking=*/false, /*copy=*/true)
                 .contiguous()});
      }
    };
    add(model_->named_parameters());
    add(model_->named_buffers());
    return values;
  }

  static std::vector<NamedTensor> BuffersOf(std::vector<Copied>& values, std::string& state) {
    std::vector<NamedTensor> tensors;
    for (Copied& value : values) {
      const auto count = static_cast<uint64_t>(value.copy.numel());
      const DType dtype = internal::CheckedDType(value.name, value.copy);
      tensors.push_back(
          {value.name, Buffer(value.copy.data_ptr(), count, dtype),
           Shape(value.copy.sizes().begin(), value.copy.sizes().end())});
    }
    tensors.push_back({kStateName, Buffer(state.data(), state.size(), DType::kU8), {state.size()}});
    return tensors;
  }

  template <typename Use>
  void WithState(SaveOptions options, const Use& use) {
    std::vector<Copied> values = CopiesOfModel();
    std::string state = StateOfAll();
    options.metadata[kBytesKey] = std::to_string(state.size());
    use(options, BuffersOf(values, state));
  }

  // The bytes of rank 0, on all ranks: those of other ranks may differ. Rank 0 collects the state
  // of a sharded optimizer.
  std::string StateOfAll() {
    auto* sharded = dynamic_cast<ShardedOptimizer*>(&internal::StatefulOptimizer(*optimizer_));
    if (sharded != nullptr) sharded->Collect(0);
    std::string state;
    if (communicator_->rank() == 0) state = internal::SaveOptimizer(*optimizer_);
    return BroadcastBytes(*communicator_, state, 0);
  }

  static uint64_t OptimizerBytes(const Checkpoint& checkpoint) {
    const auto told = checkpoint.metadata.find(kBytesKey);
    if (told == checkpoint.metadata.end())
      internal::Refuse(
          ErrorCode::kInvalidArgument, "the checkpoint '", checkpoint.name,
          "' has no optimizer of LibTorch; expected one that dtrun::torch::CheckpointManager "
          "saved");
    return std::stoull(told->second);
  }

  Communicator* communicator_;
  ::torch::nn::Module* model_;
  ::torch::optim::Optimizer* optimizer_;
  dtrun::CheckpointManager checkpoints_;
};

}  // namespace torch
}  // namespace dtrun

#endif
