#ifndef DTRUN_DETAIL_DELTA_REDUCTION_H_
#define DTRUN_DETAIL_DELTA_REDUCTION_H_

#include <dtrun/communicator.h>
#include <dtrun/error.h>
#include <dtrun/named_queue.h>
#include <dtrun/optimizer.h>
#include <dtrun/types.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

// What DistributedOptimizer combines with ReduceOp::kAdasum; not for trainers.

namespace dtrun {
namespace detail {

/// Throws kInvalidArgument unless so many ranks can combine by adasum: a power of two.
inline void CheckAdasumRanks(int size) {
  if (size > 0 && (size & (size - 1)) == 0) return;
  throw Error(
      ErrorCode::kInvalidArgument, "DistributedOptimizer: adasum on " + std::to_string(size) +
                                       " ranks; expected a number of ranks that is a power of two");
}

/// Steps that each rank makes by itself, and then takes with the others: what the steps of all
/// ranks have added to a parameter is combined by adaptive summation, and that is added instead.
///
///   before the step w;  after it w + d on each rank, d its own   ->   w + adasum(d of all ranks)
///
/// (S. Maleki et al., "Scaling Distributed Training with Adaptive Summation", arXiv:2006.02924: so
/// it is the optimizer's update that is combined, whatever the optimizer makes of a gradient, and
/// its state stays with each rank.)
class DeltaReduction {
 public:
  /// Collective. The `which` of the parameters, of f32 or f64, that all ranks share.
  DeltaReduction(
      Communicator& communicator, std::vector<Parameter>& parameters, std::vector<size_t> which)
      : parameters_(parameters), which_(std::move(which)), queue_(communicator) {
    for (const size_t i : which_) {
      const Buffer& value = parameters_[i].value;
      before_.emplace_back((value.bytes() + sizeof(uint64_t) - 1) / sizeof(uint64_t));
      tensors_.push_back(QueuedTensor::Flat(parameters_[i].name, value));
    }
    options_.op = ReduceOp::kAdasum;
  }

  const std::vector<size_t>& which() const { return which_; }

  /// Before the step.
  void Begin() {
    for (size_t k = 0; k < which_.size(); ++k) {
      const Buffer& value = Value(k);
      if (value.count > 0) std::memcpy(before_[k].data(), value.data, value.bytes());
    }
  }

  /// After it: the values become what all ranks have. Collective.
  void End() {
    if (which_.empty()) return;
    ForEach([](auto value, auto before) { return value - before; });
    queue_.AllReduce(tensors_, options_).Wait();
    ForEach([](auto delta, auto before) { return before + delta; });
  }

 private:
  const Buffer& Value(size_t k) const { return parameters_[which_[k]].value; }

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
    T* const values = static_cast<T*>(Value(k).data);
    const T* const before = reinterpret_cast<const T*>(before_[k].data());
    for (uint64_t i = 0; i < Value(k).count; ++i) values[i] = combine(values[i], before[i]);
  }

  std::vector<Parameter>& parameters_;
  std::vector<size_t> which_;
  std::vector<std::vector<uint64_t>> before_;  // values, by place in which_
  NamedQueue::Tensors tensors_;
  NamedOptions options_;
  NamedQueue queue_;
};

}  // namespace detail
}  // namespace dtrun

#endif
