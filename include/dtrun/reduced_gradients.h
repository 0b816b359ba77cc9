#ifndef DTRUN_REDUCED_GRADIENTS_H_
#define DTRUN_REDUCED_GRADIENTS_H_

#include <dtrun/communicator.h>
#include <dtrun/gradient_reducer.h>
#include <dtrun/optimizer.h>
#include <dtrun/statistics.h>
#include <dtrun/types.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

// What DistributedOptimizer reduces; not for trainers.

namespace dtrun {
namespace detail {

/// The gradients of an optimizer in a reducer; those that come to it later (thawed) in further
/// ones.
///
/// With them rides a flag, an empty gradient that is used by the ranks that have something to say
/// in a step. It is a part of the last bucket and costs no operation: when nobody has anything to
/// say, which is nearly always, nobody asks.
class ReducedGradients {
 public:
  ReducedGradients(size_t parameters, ReducerOptions options)
      : options_(options), places_(parameters) {}

  /// Takes `which` parameters, called `names`; those without memory get it. Collective.
  void Add(
      Communicator& communicator, std::vector<Parameter>& parameters,
      const std::vector<size_t>& which, const std::vector<std::string>& names) {
    std::vector<Gradient> gradients;
    const bool is_first = reducers_.empty();
    if (is_first) {
      const DType dtype = which.empty() ? DType::kF32 : parameters[which[0]].value.dtype;
      gradients.push_back({"(flag)", Buffer(nullptr, 0, dtype)});
    }
    for (size_t k = 0; k < which.size(); ++k) {
      const Parameter& parameter = parameters[which[k]];
      Buffer gradient = parameter.gradient;
      if (gradient.data == nullptr)
        gradient = Buffer(nullptr, parameter.value.count, parameter.value.dtype);
      places_[which[k]] = {static_cast<int>(reducers_.size()), gradients.size()};
      gradients.push_back({names[k], gradient});
    }
    reducers_.emplace_back(communicator, gradients, options_);
    for (const size_t i : which)
      parameters[i].gradient = reducers_.back().gradient(places_[i].index);
  }

  bool has(size_t i) const { return places_[i].reducer >= 0; }
  void MarkReady(size_t i) { Of(i).MarkReady(places_[i].index); }
  void MarkUnused(size_t i) { Of(i).MarkUnused(places_[i].index); }

  /// The last of a step's marks. True if a rank has `something_to_say`, the same on all ranks.
  bool Wait(bool something_to_say) {
    if (something_to_say)
      reducers_[0].MarkReady(0);
    else
      reducers_[0].MarkUnused(0);
    for (GradientReducer& reducer : reducers_) reducer.Wait();
    return reducers_[0].WasUsed(0);
  }
  /// Of those that were added last.
  void WaitForAdded() { reducers_.back().Wait(); }
  /// Whether any rank has used it in this step.
  bool WasUsed(size_t i) const { return reducers_[At(i)].WasUsed(places_[i].index); }

  /// Of all reducers together: their steps are the same.
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
  // What is spent in another reducer is no computation.
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
  size_t At(size_t i) const { return static_cast<size_t>(places_[i].reducer); }
  GradientReducer& Of(size_t i) { return reducers_[At(i)]; }

  ReducerOptions options_;
  std::vector<Place> places_;  // by parameter
  std::vector<GradientReducer> reducers_;
};

}  // namespace detail
}  // namespace dtrun

#endif
