#ifndef DTRUN_GRADIENT_REDUCER_H_
#define DTRUN_GRADIENT_REDUCER_H_

#include <dtrun/c.h>
#include <dtrun/communicator.h>
#include <dtrun/error.h>
#include <dtrun/statistics.h>
#include <dtrun/types.h>

#include <memory>
#include <string>
#include <vector>

namespace dtrun {

/// One gradient of a GradientReducer. Without data (`Buffer(nullptr, count, dtype)`) the reducer
/// gives it a place in its own block, which is reduced without a copy; otherwise it is packed when
/// marked and unpacked by `Wait()`.
struct Gradient {
  std::string name;
  Buffer buffer;
};

struct ReducerOptions {
  ReduceOp op = ReduceOp::kAverage;
  uint64_t bucket_bytes = 0;  ///< 0: the option `bucket_bytes`
  /// Of kSum and kAverage: rides along with the reduction. Each factor in [1/1024, 1024].
  Scale scale = {};
};

/// Reduces the gradients of one model over all ranks, in buckets, while the backward pass still
/// runs. The plan (which gradient lies in which bucket) is agreed once, at construction; a step
/// negotiates nothing, and copies only gradients that have memory of their own.
///
///   backward from the last layer to the first:   reducer.MarkReady(i)   as soon as gradient i is
///   complete before the optimizer reads a gradient:       reducer.Wait()
///
/// The gradient must not be touched between its MarkReady and Wait: a peer may already write there.
/// Not thread-safe.
class GradientReducer {
 public:
  /// Collective. All ranks pass the same names, counts and dtypes in the same order, first layer
  /// first; a difference is kMismatch and names the first gradient that differs, with both sides'
  /// ranks.
  GradientReducer(
      Communicator& communicator, const std::vector<Gradient>& gradients,
      ReducerOptions options = {}) {
    std::vector<dtrun_gradient> list;
    for (const Gradient& gradient : gradients)
      list.push_back({gradient.name.c_str(), detail::ToC(gradient.buffer)});
    dtrun_reducer_options told = dtrun_default_reducer_options();
    told.reduce_op = static_cast<int32_t>(options.op);
    told.bucket_bytes = options.bucket_bytes;
    told.scale = {options.scale.before, options.scale.after};
    dtrun_reducer* reducer = nullptr;
    detail::Check(dtrun_reducer_create_with(
        communicator.handle(), list.data(), list.size(), &told, &reducer));
    handle_.reset(reducer);
    size_ = static_cast<size_t>(communicator.size());
  }

  /// Where gradient `i` has to be written, before it is marked.
  Buffer gradient(size_t i) const {
    dtrun_buffer buffer{};
    detail::Check(dtrun_reducer_gradient(handle_.get(), i, &buffer));
    return detail::FromC(buffer);
  }

  /// Gradient `i` is complete. Its bucket starts once all of its gradients, and the buckets before
  /// it, are.
  void MarkReady(size_t i) { detail::Check(dtrun_reducer_mark_ready(handle_.get(), i)); }

  /// The same for a gradient that lies at `source`, as many elements of its dtype: it is copied
  /// into the block, in pieces between which the buckets under way go on. The result comes to
  /// `gradient(i)`; `source` is not changed.
  void MarkReadyFrom(size_t i, const void* source) {
    detail::Check(dtrun_reducer_mark_ready_from(handle_.get(), i, source));
  }

  /// This rank has no gradient `i` in this step, and contributes zeros.
  void MarkUnused(size_t i) { detail::Check(dtrun_reducer_mark_unused(handle_.get(), i)); }

  /// Whether gradient `i` has a bucket of its own: it is at least as large as `bucket_bytes`, and
  /// 1 MiB.
  bool IsAlone(size_t i) const {
    int32_t alone = 0;
    detail::Check(dtrun_reducer_is_alone(handle_.get(), i, &alone));
    return alone != 0;
  }

  /// For gradients that have a bucket of their own. Gradient `i` is complete: it is reduced, and
  /// its result comes to, `place`, in this step: that of any gradient of its size
  /// (`gradient(k).data`), which no other uses in this step, or memory of your own, which is
  /// slower. Copied there from `source` unless that is `place`.
  void MarkReadyAt(size_t i, const void* source, void* place) {
    detail::Check(dtrun_reducer_mark_ready_at(handle_.get(), i, source, place));
  }
  /// The same for a gradient that this rank does not have: zeros are written to `place`.
  void MarkUnusedAt(size_t i, void* place) {
    detail::Check(dtrun_reducer_mark_unused_at(handle_.get(), i, place));
  }

  /// Reduces what has not been marked as well, and returns when every gradient holds the result. A
  /// packed gradient that every rank marked unused keeps its values.
  void Wait() { detail::Check(dtrun_reducer_wait(handle_.get())); }

  /// Of the last Wait, until gradient `i` is marked again: false if every rank marked it unused.
  /// The same on all ranks, at the cost of no operation.
  bool WasUsed(size_t i) const {
    int32_t used = 0;
    detail::Check(dtrun_reducer_was_used(handle_.get(), i, &used));
    return used != 0;
  }

  /// Where the time of the steps went on this rank. Always there: it costs a step a few looks at
  /// the clock.
  ReducerStatistics statistics() const {
    dtrun_step_statistics last = dtrun_new_step_statistics(), total = dtrun_new_step_statistics();
    detail::Check(dtrun_reducer_statistics(handle_.get(), &last, &total));
    ReducerStatistics statistics{
        detail::FromC(last), detail::FromC(total), std::vector<double>(size_)};
    detail::Check(dtrun_reducer_late_ranks(
        handle_.get(), statistics.late_by_rank_s.data(), statistics.late_by_rank_s.size()));
    return statistics;
  }

 private:
  std::unique_ptr<dtrun_reducer, detail::Destroyer<dtrun_reducer, dtrun_reducer_destroy>> handle_;
  size_t size_ = 0;  // ranks
};

}  // namespace dtrun

#endif
