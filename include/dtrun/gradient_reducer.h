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

/// One gradient of a GradientReducer. If it has no data (`Buffer(nullptr, count, dtype)`), it gets
/// a place in the reducer's own block and is reduced there without a copy. Otherwise it is packed:
/// its mark copies it into the block, and `Wait()` copies the result back. A packed gradient with
/// its own bucket (`IsAlone`) is reduced in its own memory, without a copy.
struct Gradient {
  std::string name;  ///< not empty, and different from the other names of the reducer
  Buffer buffer;     ///< its count, dtype and place
};

/// The options of a GradientReducer. All ranks pass the same options.
struct ReducerOptions {
  ReduceOp op = ReduceOp::kAverage;  ///< any except kAdasum
  uint64_t bucket_bytes = 0;         ///< 0: the option `bucket_bytes`
  /// For kSum and kAverage, at no extra cost. Each factor is in [1/1024, 1024].
  Scale scale = {};
  /// The size of the first bucket that a backward pass fills. A small first bucket starts the
  /// communication early. At most `bucket_bytes`. 0: 1 MiB, or `bucket_bytes` if that is less.
  uint64_t first_bucket_bytes = 0;
  /// Lists of gradient indices. The gradients of a list have one dtype and are reduced together, in
  /// one bucket of any size. Other gradients are reduced as usual.
  std::vector<std::vector<size_t>> groups = {};
  /// An alternative to `groups`: deals all gradients, in their order, to this many groups with
  /// nearly equal numbers of gradients. A group of several dtypes becomes one bucket per dtype. 0:
  /// use `groups`.
  size_t equal_groups = 0;
  Wire wire = Wire::kNone;  ///< the format of buckets while they are reduced
  /// A user-defined format, instead of `wire`.
  std::shared_ptr<WireFormat> wire_format = nullptr;
  /// True: at the end of the first Wait, the reducer forms new buckets in the order in which rank 0
  /// marked the gradients. Then a late or unused gradient no longer delays other gradients.
  /// `gradient(i)`, `IsAlone(i)` and the bits of the results stay the same. With the option
  /// `wire_dtype` the bits may change, because that option does not compress small buckets.
  bool rebuild = true;
};

/// Reduces the gradients of a model over all ranks, in buckets, while the backward pass still runs.
/// The constructor agrees on the plan, that is, on the bucket of each gradient. A step does not
/// negotiate. It copies only gradients with their own memory.
///
///   in backward, last layer first:           reducer.MarkReady(i) when gradient i is complete
///   before the optimizer reads a gradient:   reducer.Wait()
///
/// Do not touch a gradient between its MarkReady and Wait: a peer may already write there. After an
/// error other than kInvalidArgument the reducer is unusable, and throws the error again. Not
/// thread-safe.
class GradientReducer {
 public:
  /// Collective. All ranks pass the same options, and the same names (none twice, none empty),
  /// counts and dtypes in the same order, first layer first. kMismatch names the first gradient
  /// that differs, with the ranks of both sides.
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

  /// The place of gradient `i`. Write the gradient there before you mark it.
  Buffer gradient(size_t i) const {
    dtrun_buffer buffer{};
    detail::Check(dtrun_reducer_gradient(handle_.get(), i, &buffer));
    return detail::FromC(buffer);
  }

  /// Marks gradient `i` as complete. Its bucket starts when all gradients of the bucket are
  /// complete and all earlier buckets have started.
  void MarkReady(size_t i) { Check(dtrun_reducer_mark_ready(handle_.get(), i)); }

  /// The same for a gradient at `source`, with as many elements of its dtype. Copies the gradient
  /// into the block in pieces, and advances the started buckets between the pieces. The result goes
  /// to `gradient(i)`. `source` is not changed.
  void MarkReadyFrom(size_t i, const void* source) {
    Check(dtrun_reducer_mark_ready_from(handle_.get(), i, source));
  }

  /// Marks that this rank has no gradient `i` in this step, and contributes zeros.
  void MarkUnused(size_t i) { Check(dtrun_reducer_mark_unused(handle_.get(), i)); }

  /// Whether gradient `i` has its own bucket: it has at least `bucket_bytes` (1 MiB within a host,
  /// if the size of buckets is `auto`) and at least 1 MiB, and shares no group with other gradients.
  bool IsAlone(size_t i) const {
    int32_t alone = 0;
    detail::Check(dtrun_reducer_is_alone(handle_.get(), i, &alone));
    return alone != 0;
  }

  /// Marks gradient `i`, which has its own bucket, as complete. In this step the gradient is
  /// reduced at `place`, and the result stays there. `place` is `gradient(k).data` of any gradient
  /// k of the same size, or your own memory, which is slower. No other gradient uses the same place
  /// in this step. If `source` differs from `place`, the gradient is first copied from `source`.
  void MarkReadyAt(size_t i, const void* source, void* place) {
    Check(dtrun_reducer_mark_ready_at(handle_.get(), i, source, place));
  }
  /// The same for a gradient that this rank does not have: writes zeros to `place`.
  void MarkUnusedAt(size_t i, void* place) {
    Check(dtrun_reducer_mark_unused_at(handle_.get(), i, place));
  }

  /// Marks all remaining gradients as ready, reduces them, and returns when every gradient holds
  /// its result. If every rank marked a packed gradient as unused, the gradient keeps its values.
  void Wait() { Check(dtrun_reducer_wait(handle_.get())); }

  /// Returns false if every rank marked gradient `i` as unused before the last Wait. Valid until
  /// the gradient is marked again. The same on all ranks. It costs no operation.
  bool WasUsed(size_t i) const {
    int32_t used = 0;
    detail::Check(dtrun_reducer_was_used(handle_.get(), i, &used));
    return used != 0;
  }

  /// The time that steps took on this rank. Always available: it reads the clock a few times per
  /// step.
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
  size_t size_ = 0;  // number of ranks
};

}  // namespace dtrun

#endif
