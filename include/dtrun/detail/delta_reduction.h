#ifndef DTRUN_DETAIL_DELTA_REDUCTION_H_
#define DTRUN_DETAIL_DELTA_REDUCTION_H_

#include <dtrun/communicator.h>
#include <dtrun/detail/block_device.h>
#include <dtrun/error.h>
#include <dtrun/named_queue.h>
#include <dtrun/optimizer.h>
#include <dtrun/types.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

// Adasum in a DistributedOptimizer. Internal.

namespace dtrun {
namespace detail {

/// Throws kInvalidArgument unless `size` is a power of two: adasum needs that.
inline void CheckAdasumRanks(int size) {
  if (size > 0 && (size & (size - 1)) == 0) return;
  throw Error(
      ErrorCode::kInvalidArgument, "DistributedOptimizer: adasum on " + std::to_string(size) +
                                       " ranks; expected a number of ranks that is a power of two");
}

/// Combines the steps of the ranks. Each rank steps alone. The changes of a parameter on all ranks
/// are combined by adaptive summation, and the combination replaces the rank's own change.
///
///   before the step w;  after it w + d on each rank, d its own   ->   w + adasum(d of all ranks)
///
/// (S. Maleki et al., "Scaling Distributed Training with Adaptive Summation", arXiv:2006.02924.)
/// Adasum combines the optimizer's updates, not the gradients. The optimizer's state stays with
/// each rank. The changes of parameters on a GPU are combined in host memory.
class DeltaReduction {
 public:
  /// Collective. `which` has the parameters, of f32 or f64, that all ranks share.
  DeltaReduction(
      Communicator& communicator, std::vector<Parameter>& parameters, std::vector<size_t> which)
      : parameters_(parameters), which_(std::move(which)), queue_(communicator) {
    for (const size_t i : which_) {
      const Buffer& value = parameters_[i].value;
      before_.push_back(Room(value));
      after_.push_back(value.device >= 0 ? Room(value) : std::vector<uint64_t>());
      Buffer here = value;
      if (value.device >= 0) here = Buffer(after_.back().data(), value.count, value.dtype);
      tensors_.push_back(QueuedTensor::Flat(parameters_[i].name, here));
      here_.push_back(here);
    }
    options_.op = ReduceOp::kAdasum;
  }

  const std::vector<size_t>& which() const { return which_; }

  /// Called before the step: saves the values.
  void Begin() {
    for (size_t k = 0; k < which_.size(); ++k)
      Copy(Value(k), Buffer(before_[k].data(), Value(k).count, Value(k).dtype));
  }

  /// Called after the step: sets the values to the combined result. Collective.
  void End() {
    if (which_.empty()) return;
    for (size_t k = 0; k < which_.size(); ++k)
      if (Value(k).device >= 0) Copy(Value(k), here_[k]);
    ForEach([](auto value, auto before) { return value - before; });
    queue_.AllReduce(tensors_, options_).Wait();
    ForEach([](auto delta, auto before) { return before + delta; });
    for (size_t k = 0; k < which_.size(); ++k)
      if (Value(k).device >= 0) Copy(here_[k], Value(k));
  }

 private:
  const Buffer& Value(size_t k) const { return parameters_[which_[k]].value; }
  static std::vector<uint64_t> Room(const Buffer& value) {
    return std::vector<uint64_t>((value.bytes() + sizeof(uint64_t) - 1) / sizeof(uint64_t));
  }

  // value = combine(value, value before the step), element by element.
  template <typename Combine>
  void ForEach(const Combine& combine) {
    for (size_t k = 0; k < which_.size(); ++k) {
      if (Value(k).dtype == DType::kF64)
        ForEachOf<double>(k, combine);
      else
        ForEachOf<float>(k, combine);
    }
  }
  template <typename T, typename Combine>
  void ForEachOf(size_t k, const Combine& combine) {
    T* const values = static_cast<T*>(here_[k].data);
    const T* const before = reinterpret_cast<const T*>(before_[k].data());
    for (uint64_t i = 0; i < here_[k].count; ++i) values[i] = combine(values[i], before[i]);
  }

  std::vector<Parameter>& parameters_;
  std::vector<size_t> which_;
  // By index in which_.
  std::vector<std::vector<uint64_t>> before_;  // values before the step
  std::vector<std::vector<uint64_t>> after_;   // room for values that lie on a GPU
  std::vector<Buffer> here_;                   // values in host memory
  NamedQueue::Tensors tensors_;
  NamedOptions options_;
  NamedQueue queue_;
};

}  // namespace detail
}  // namespace dtrun

#endif
