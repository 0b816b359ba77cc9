#ifndef DTRUN_FROZEN_PARAMETERS_H_
#define DTRUN_FROZEN_PARAMETERS_H_

#include <dtrun/communicator.h>
#include <dtrun/error.h>
#include <dtrun/gradient_checks.h>
#include <dtrun/optimizer.h>
#include <dtrun/types.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

// How DistributedOptimizer knows what is frozen; not for trainers.

namespace dtrun {
namespace detail {

/// What the ranks that are not `away` (by rank), or all if nobody else is there, have frozen (by
/// parameter, 1 or 0). Throws kMismatch on all ranks unless it is the same. Collective.
inline std::vector<uint8_t> AgreeOnFrozen(
    Communicator& communicator, const std::vector<Parameter>& parameters,
    const std::vector<uint8_t>& frozen, const std::vector<uint8_t>& away, const std::string& when) {
  std::vector<uint8_t> mine = frozen;
  std::vector<uint8_t> all(mine.size() * away.size());
  communicator.AllGather(Buffer(mine.data(), mine.size()), Buffer(all.data(), all.size()));
  const bool nobody_else = std::find(away.begin(), away.end(), uint8_t{0}) == away.end();
  for (size_t i = 0; i < mine.size(); ++i) {
    std::vector<int> sides[2];
    for (size_t rank = 0; rank < away.size(); ++rank)
      if (nobody_else || away[rank] == 0)
        sides[all[rank * mine.size() + i] != 0].push_back(static_cast<int>(rank));
    if (!sides[0].empty() && !sides[1].empty())
      throw Error(
          ErrorCode::kMismatch, "parameter '" + parameters[i].name + "' is frozen on " +
                                    RankList(sides[1]) + " and not on " + RankList(sides[0]) +
                                    when +
                                    "; all ranks Freeze() and Thaw() it before the same step");
    if (sides[0].size() + sides[1].size() > 0) mine[i] = sides[0].empty() ? 1 : 0;
  }
  return mine;
}

/// Which parameters are frozen in a step, as their `requires_gradient` says, and what the ranks
/// last agreed upon. Local ones are each rank's own affair.
class FrozenParameters {
 public:
  /// `first`: for each parameter the first of those it is tied to; `is_local`: 1 or 0.
  FrozenParameters(
      const std::vector<Parameter>& parameters, const std::vector<size_t>& first,
      const std::vector<uint8_t>& is_local)
      : first_(first), is_local_(is_local) {
    Look(parameters);
    agreed_ = shared_;
  }

  void Look(const std::vector<Parameter>& parameters) {
    frozen_.assign(first_.size(), 0);
    shared_.assign(first_.size(), 0);
    gradients_.assign(first_.size(), 1);
    for (size_t i = 0; i < first_.size(); ++i) {
      frozen_[i] = parameters[i].requires_gradient ? 0 : 1;
      if (is_local_[i] == 0) shared_[i] = frozen_[i];
      if (frozen_[i] == 0) gradients_[first_[i]] = 0;
    }
  }

  bool is_frozen(size_t i) const { return frozen_[i] != 0; }
  /// The parameter and all that are tied to it.
  bool gradient_is_frozen(size_t i) const { return gradients_[first_[i]] != 0; }
  const std::vector<uint8_t>& by_parameter() const { return frozen_; }
  /// Something has changed here since the ranks agreed.
  bool has_changed() const { return shared_ != agreed_; }

  /// See AgreeOnFrozen: a rank that is away follows the others, whatever it has frozen itself.
  /// True, on all ranks, if what they agree upon has changed. Collective.
  bool Agree(
      Communicator& communicator, std::vector<Parameter>& parameters,
      const std::vector<uint8_t>& away, const std::string& when) {
    std::vector<uint8_t> agreed = AgreeOnFrozen(communicator, parameters, shared_, away, when);
    const bool changed = agreed != agreed_;
    if (!changed && agreed == shared_) return false;
    agreed_ = std::move(agreed);
    for (size_t i = 0; i < first_.size(); ++i)
      if (is_local_[i] == 0) parameters[i].requires_gradient = agreed_[i] == 0;
    Look(parameters);
    return changed;
  }

 private:
  std::vector<size_t> first_;
  std::vector<uint8_t> is_local_;
  std::vector<uint8_t> frozen_, shared_, agreed_;  // by parameter; the latter without local ones
  std::vector<uint8_t> gradients_;                 // by first parameter
};

}  // namespace detail
}  // namespace dtrun

#endif
