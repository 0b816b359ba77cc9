#ifndef DTRUN_GRADIENT_REDUCER_H_
#define DTRUN_GRADIENT_REDUCER_H_

#include <dtrun/c.h>
#include <dtrun/communicator.h>
#include <dtrun/detail/statistics.h>
#include <dtrun/detail/wire_format.h>
#include <dtrun/error.h>
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
  /// Of the first bucket that a backward pass fills, so that the wire starts early; at most
  /// `bucket_bytes`. 0: 1 MiB, or `bucket_bytes` if that is less.
  uint64_t first_bucket_bytes = 0;
  /// Gradients, of one dtype, that are reduced together: a bucket for each list of indices,
  /// whatever its size. The others as usual.
  std::vector<std::vector<size_t>> groups = {};
  /// In their place: all gradients, in their order, in so many groups, as equal in number as can
  /// be; of several dtypes, a bucket for each. 0: as `groups` says.
  size_t equal_groups = 0;
  Wire wire = Wire::kNone;
  /// A format of your own, in place of `wire`.
  std::shared_ptr<WireFormat> wire_format = nullptr;
  /// Once, at the end of the first Wait, the buckets are cut anew for the order in which rank 0
  /// marked gradients: one that comes late, or that no backward pass reaches, holds no others back
  /// any more. `gradient(i)`, `IsAlone(i)` and the bits of results stay the same (with the option
  /// `wire_dtype` they may not, since it leaves small buckets alone).
  bool rebuild = true;
};

/// Reduces the gradients of one model over all ranks, in buckets, while the backward pass still
/// runs. The plan (which gradient lies in which bucket) is agreed once, at construction; a step
/// negotiates nothing, and copies only gradients that have memory of their own.
///
///   backward from the last layer to the first:   reducer.MarkReady(i)   as soon as gradient i is
///   complete before the optimizer reads a gradient:       reducer.Wait()
///
/// The gradient must not be touched between its MarkReady and Wait: a peer may already write there.
/// After an error other than kInvalidArgument it is of no more use, and throws that error again.
/// Not thread-safe.
class GradientReducer {
 public:
  /// Collective. All ranks pass the same names (none twice, none empty), counts and dtypes in the
  /// same order, first layer first, and the same options; a difference is kMismatch and names the
  /// first gradient that differs, with both sides' ranks.
  GradientReducer(
      Communicator& communicator, const std::vector<Gradient>& gradients,
      ReducerOptions options = {}) {
    if (options.wire_format != nullptr)
      format_ = std::make_unique<detail::WireFunctions>(options.wire_format);
    std::vector<dtrun_gradient> list;
    for (const Gradient& gradient : gradients)
      list.push_back({gradient.name.c_str(), detail::ToC(gradient.buffer)});
    std::vector<std::vector<uint64_t>> indices;
    for (const auto& group : options.groups) indices.emplace_back(group.begin(), group.end());
    std::vector<dtrun_group> groups;
    for (const auto& group : indices) groups.push_back({group.data(), group.size()});
    dtrun_reducer_options told = dtrun_default_reducer_options();
    told.reduce_op = static_cast<int32_t>(options.op);
    told.bucket_bytes = options.bucket_bytes;
    told.scale = {options.scale.before, options.scale.after};
    told.first_bucket_bytes = options.first_bucket_bytes;
    told.groups = groups.data();
    told.group_count = groups.size();
    told.equal_groups = options.equal_groups;
    told.wire = static_cast<int32_t>(options.wire);
    told.rebuild = options.rebuild ? 1 : 0;
    told.wire_format = format_ != nullptr ? format_->functions() : nullptr;
    dtrun_reducer* reducer = nullptr;
    Check(dtrun_reducer_create_with(
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
  void MarkReady(size_t i) { Check(dtrun_reducer_mark_ready(handle_.get(), i)); }

  /// The same for a gradient that lies at `source`, as many elements of its dtype: it is copied
  /// into the block, in pieces between which the buckets under way go on. The result comes to
  /// `gradient(i)`; `source` is not changed.
  void MarkReadyFrom(size_t i, const void* source) {
    Check(dtrun_reducer_mark_ready_from(handle_.get(), i, source));
  }

  /// This rank has no gradient `i` in this step, and contributes zeros.
  void MarkUnused(size_t i) { Check(dtrun_reducer_mark_unused(handle_.get(), i)); }

  /// Whether gradient `i` has a bucket of its own: it is at least as large as `bucket_bytes`, and
  /// 1 MiB, and in no group with others.
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
    Check(dtrun_reducer_mark_ready_at(handle_.get(), i, source, place));
  }
  /// The same for a gradient that this rank does not have: zeros are written to `place`.
  void MarkUnusedAt(size_t i, void* place) {
    Check(dtrun_reducer_mark_unused_at(handle_.get(), i, place));
  }

  /// Reduces what has not been marked as well, and returns when every gradient holds the result. A
  /// packed gradient that every rank marked unused keeps its values.
  void Wait() { Check(dtrun_reducer_wait(handle_.get())); }

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
  void Check(dtrun_error* error) const {
    if (format_ != nullptr) return format_->Check(error);
    detail::Check(error);
  }

  std::unique_ptr<detail::WireFunctions> format_;  // outlives the handle
  std::unique_ptr<dtrun_reducer, detail::Destroyer<dtrun_reducer, dtrun_reducer_destroy>> handle_;
  size_t size_ = 0;  // ranks
};

}  // namespace dtrun

#endif
