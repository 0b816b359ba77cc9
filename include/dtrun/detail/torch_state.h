#ifndef DTRUN_DETAIL_TORCH_STATE_H_
#define DTRUN_DETAIL_TORCH_STATE_H_

#include <dtrun/detail/torch_optimizer.h>
#include <dtrun/detail/torch_sharded.h>
#include <dtrun/detail/torch_tensors.h>
#include <dtrun/elastic.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <sstream>
#include <string>

namespace dtrun {
namespace torch {

namespace internal {

/// The optimizer that has the state.
inline ::torch::optim::Optimizer& StatefulOptimizer(::torch::optim::Optimizer& optimizer) {
  auto* wrapper = dynamic_cast<DistributedOptimizer*>(&optimizer);
  return wrapper == nullptr ? optimizer : wrapper->inner();
}

/// Refuses a state that no rank has as a whole.
inline void CheckWhole(::torch::optim::Optimizer& optimizer) {
  if (dynamic_cast<ShardedOptimizer*>(&StatefulOptimizer(optimizer)) == nullptr) return;
  Refuse(
      ErrorCode::kInvalidArgument,
      "broadcast_optimizer_state: no rank has the whole state of a ShardedOptimizer; load a saved "
      "state on all ranks");
}

/// The state of the optimizer and the options of its groups, as bytes. A ShardedOptimizer has been
/// collected on this rank.
inline std::string SaveOptimizer(::torch::optim::Optimizer& optimizer) {
  ::torch::optim::Optimizer& inner = StatefulOptimizer(optimizer);
  ::torch::serialize::OutputArchive archive, state;
  inner.save(state);
  archive.write("state", state);
  for (size_t g = 0; g < optimizer.param_groups().size(); ++g) {
    ::torch::serialize::OutputArchive group;
    optimizer.param_groups()[g].options().serialize(group);
    archive.write("group" + std::to_string(g), group);
  }
  std::ostringstream stream;
  archive.save_to(stream);
  return stream.str();
}

/// Throws c10::Error if `bytes` are of an optimizer with other groups, and then keeps the state of
/// `optimizer`. Each rank loads to the device of its own parameters.
inline void LoadOptimizer(::torch::optim::Optimizer& optimizer, const std::string& bytes) {
  ::torch::optim::Optimizer& inner = StatefulOptimizer(optimizer);
  ::torch::serialize::InputArchive archive, state;
  OpenState(optimizer, bytes, archive);
  archive.read("state", state);
  auto before = std::move(inner.state());
  inner.state().clear();
  try {
    inner.load(state);
  } catch (...) {
    inner.state() = std::move(before);
    throw;
  }
  for (size_t g = 0; g < optimizer.param_groups().size(); ++g) {
    ::torch::serialize::InputArchive group;
    archive.read("group" + std::to_string(g), group);
    optimizer.param_groups()[g].options().serialize(group);
  }
}

/// The parameters and buffers of the module, as bytes.
inline std::string SaveModule(::torch::nn::Module& module) {
  ::torch::serialize::OutputArchive archive;
  module.save(archive);
  std::ostringstream stream;
  archive.save_to(stream);
  return stream.str();
}

inline void LoadModule(::torch::nn::Module& module, const std::string& bytes) {
  ::torch::serialize::InputArchive archive;
  archive.load_from(bytes.data(), bytes.size());
  module.load(archive);
}

}  // namespace internal

/// Makes the state of the optimizer (momenta, moments, step counts) and the options of its groups
/// on all ranks equal to those of rank `root`. The other ranks need not have any state yet.
/// Collective. It works for LibTorch's optimizers, and for optimizers that override `save` and
/// `load` in the same way. For a DistributedOptimizer, it broadcasts the inner optimizer.
/// kInvalidArgument: a ShardedOptimizer.
inline void BroadcastOptimizerState(
    Communicator& communicator, ::torch::optim::Optimizer& optimizer, int root = 0) {
  internal::CheckWhole(optimizer);
  std::string bytes;
  if (communicator.rank() == root) bytes = internal::SaveOptimizer(optimizer);
  uint64_t size = bytes.size();
  communicator.Broadcast(Buffer(&size, 1), root);
  bytes.resize(size);
  communicator.Broadcast(Buffer(bytes.data(), size, DType::kU8), root);
  if (communicator.rank() == root) return;
  try {
    internal::LoadOptimizer(optimizer, bytes);
  } catch (const c10::Error& error) {
    internal::Refuse(
        ErrorCode::kMismatch, "broadcast_optimizer_state: the state of rank ", root,
        " does not fit the optimizer of rank ", communicator.rank(), ": ",
        error.what_without_backtrace());
  }
}

/// Keeps the parameters and buffers of the module and the state of the optimizer when a job loses
/// ranks: see Elastic. The optimizer is LibTorch's own. Make a DistributedOptimizer around it in
/// each call of the loop. If the module has buffers, pass `sync_buffers = false` to the
/// DistributedOptimizer: its broadcasts would stand between the step and EndStep().
inline void Keep(
    Elastic& elastic, ::torch::nn::Module& module, ::torch::optim::Optimizer& optimizer) {
  if (dynamic_cast<ShardedOptimizer*>(&internal::StatefulOptimizer(optimizer)) != nullptr)
    internal::Refuse(
        ErrorCode::kInvalidArgument,
        "Keep: found the state of a ShardedOptimizer, of which no rank has the whole; expected "
        "Keep(elastic, module, sharded_optimizer) in the function of Run");
  elastic.Keep(
      [&](Communicator& ranks, int root) {
        BroadcastParameters(ranks, module, root);
        BroadcastOptimizerState(ranks, optimizer, root);
      },
      [&] {
        const std::string values = internal::SaveModule(module);
        const uint64_t size = values.size();
        return std::string(reinterpret_cast<const char*>(&size), sizeof size) + values +
               internal::SaveOptimizer(optimizer);
      },
      [&](const std::string& bytes) {
        uint64_t size = 0;
        std::memcpy(&size, bytes.data(), sizeof size);
        internal::LoadModule(module, bytes.substr(sizeof size, size));
        internal::LoadOptimizer(optimizer, bytes.substr(sizeof size + size));
      });
}

}  // namespace torch
}  // namespace dtrun

#endif
