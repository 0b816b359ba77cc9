#ifndef DTRUN_DETAIL_REDUCED_GRADIENTS_H_
#define DTRUN_DETAIL_REDUCED_GRADIENTS_H_

#include <dtrun/communicator.h>
#include <dtrun/detail/statistics.h>
#include <dtrun/error.h>
#include <dtrun/gradient_reducer.h>
#include <dtrun/optimizer.h>
#include <dtrun/types.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

// The reduction of a DistributedOptimizer. Internal.

namespace dtrun {
namespace detail {

/// The gradients of an optimizer in a reducer. Gradients of parameters that are thawed later are in
/// further reducers.
///
/// The first reducer also has a flag: an empty gradient. A rank that has news in a step marks the
/// flag as used. The flag is a part of the last bucket and costs no operation. In nearly all steps,
/// no rank has news, and the ranks exchange nothing more.
class ReducedGradients {
 public:
  /// `groups` has indices of parameters. If `options` has equal_groups, all parameters are dealt to
  /// groups instead.
  ReducedGradients(
      size_t parameters, ReducerOptions options, std::vector<std::vector<size_t>> groups)
      : options_(std::move(options)), groups_(std::move(groups)), places_(parameters) {}

  /// Adds the parameters `which`, called `names`. Gradients without memory get it. Collective.
  void Add(
      Communicator& communicator, std::vector<Parameter>& parameters,
      const std::vector<size_t>& which, const std::vector<std::string>& names) {
    std::vector<Gradient> gradients;
    const bool is_first = reducers_.empty();
    if (is_first) {
      const DType dtype = which.empty() ? DType::kF32 : parameters[which[0]].value.dtype;
      Buffer flag(nullptr, 0, dtype);
      if (!which.empty()) PlaceLike(flag, parameters[which[0]].value);
      gradients.push_back({"(flag)", flag});
    }
    for (size_t k = 0; k < which.size(); ++k) {
      const Parameter& parameter = parameters[which[k]];
      Buffer gradient = parameter.gradient;
      if (gradient.data == nullptr) {
        gradient = Buffer(nullptr, parameter.value.count, parameter.value.dtype);
        PlaceLike(gradient, parameter.value);
      }
      places_[which[k]] = {static_cast<int>(reducers_.size()), gradients.size()};
      gradients.push_back({names[k], gradient});
    }
    reducers_.emplace_back(communicator, gradients, OptionsFor(gradients));
    for (const size_t i : which)
      parameters[i].gradient = reducers_.back().gradient(places_[i].index);
  }

  bool has(size_t i) const { return places_[i].reducer >= 0; }
  void MarkReady(size_t i) { Of(i).MarkReady(places_[i].index); }
  void MarkUnused(size_t i) { Of(i).MarkUnused(places_[i].index); }

  /// Ends the marks of a step, and waits. Returns true, on all ranks, if any rank has
  /// `something_to_say`.
  bool Wait(bool something_to_say) {
    if (something_to_say)
      reducers_[0].MarkReady(0);
    else
      reducers_[0].MarkUnused(0);
    for (GradientReducer& reducer : reducers_) reducer.Wait();
    return reducers_[0].WasUsed(0);
  }
  /// Waits for the reducer that was added last.
  void WaitForAdded() { reducers_.back().Wait(); }
  /// Returns true if any rank has used the gradient in this step.
  bool WasUsed(size_t i) const { return reducers_[At(i)].WasUsed(places_[i].index); }

  /// The statistics of all reducers together. All reducers have the same steps.
  ReducerStatistics statistics() const {
    ReducerStatistics all = reducers_[0].statistics();
    for (size_t k = 1; k < reducers_.size(); ++k) {
      const ReducerStatistics more = reducers_[k].statistics();
      AddReducer(more.last, &all.last);
      AddReducer(more.total, &all.total);
      for (size_t rank = 0; rank < all.late_by_rank_s.size(); ++rank)
        all.late_by_rank_s[rank] += more.late_by_rank_s[rank];
    }
    return all;
  }

 private:
  // Puts the buffer on the device and the stream of `other`.
  static void PlaceLike(Buffer& buffer, const Buffer& other) {
    buffer.device = other.device;
    buffer.stream = other.stream;
  }

  // Time in another reducer is not computation.
  static void AddReducer(const StepStatistics& more, StepStatistics* all) {
    all->compute_s -= more.exposed_s;
    all->exposed_s += more.exposed_s;
    all->late_s += more.late_s;
    all->moving_s += more.moving_s;
    all->bytes += more.bytes;
    all->buckets += more.buckets;
  }

  struct Place {
    int reducer = -1;
    size_t index = 0;
  };

  // The options of the next reducer. Later reducers do not use a user-defined format, because its
  // state belongs to the buckets of one reducer.
  ReducerOptions OptionsFor(const std::vector<Gradient>& gradients) const {
    ReducerOptions options = options_;
    options.equal_groups = 0;
    const int reducer = static_cast<int>(reducers_.size());
    if (reducer > 0) options.wire_format = nullptr;
    for (const std::vector<size_t>& group : groups_) {
      std::vector<size_t> indices;
      for (const size_t i : group)
        if (places_[i].reducer == reducer && !Contains(indices, places_[i].index))
          indices.push_back(places_[i].index);  // tied parameters have one gradient
      options.groups.push_back(std::move(indices));
    }
    if (reducer == 0 && options_.equal_groups > 0)
      options.groups = Dealt(gradients, options_.equal_groups);
    // The flag joins the group of the gradient that is ready last, which has the flag's dtype.
    for (std::vector<size_t>& group : options.groups)
      if (reducer == 0 && Contains(group, 1)) group.push_back(0);
    return options;
  }

  static bool Contains(const std::vector<size_t>& indices, size_t index) {
    return std::find(indices.begin(), indices.end(), index) != indices.end();
  }

  // Deals all gradients except the flag, in their order, to groups with nearly equal numbers of
  // gradients, of one dtype each.
  static std::vector<std::vector<size_t>> Dealt(
      const std::vector<Gradient>& gradients, size_t group_count) {
    std::vector<std::vector<size_t>> groups;
    const size_t count = gradients.size() - 1;
    if (group_count > count)
      throw Error(
          ErrorCode::kInvalidArgument, "equal_groups is " + std::to_string(group_count) +
                                           "; expected at most " + std::to_string(count) +
                                           ", a group for each gradient");
    for (size_t g = 0, next = 1; g < group_count; ++g) {
      std::map<DType, std::vector<size_t>> by_dtype;
      const size_t end = next + count / group_count + (g < count % group_count ? 1 : 0);
      for (; next < end; ++next) by_dtype[gradients[next].buffer.dtype].push_back(next);
      for (const auto& group : by_dtype) groups.push_back(group.second);
    }
    return groups;
  }

  size_t At(size_t i) const { return static_cast<size_t>(places_[i].reducer); }
  GradientReducer& Of(size_t i) { return reducers_[At(i)]; }

  ReducerOptions options_;
  std::vector<std::vector<size_t>> groups_;
  std::vector<Place> places_;  // by parameter
  std::vector<GradientReducer> reducers_;
};

}  // namespace detail
}  // namespace dtrun

#endif
