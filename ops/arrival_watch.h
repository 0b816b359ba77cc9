#ifndef DTRUN_OPS_ARRIVAL_WATCH_H_
#define DTRUN_OPS_ARRIVAL_WATCH_H_

#include <utility>
#include <vector>

#include "base/clock.h"

namespace dtrun::ops {

/// Time that waits spent before all ranks had called what was waited for.
struct Lateness {
  base::Duration total = {};
  /// Of it, by rank of the communicator: while that rank was known to be missing. Several may be
  /// missing at a time.
  std::vector<base::Duration> by_rank = {};
};

/// One wait for the ranks that have not called an operation yet. Pure.
class ArrivalWatch {
 public:
  /// `missing`: the ranks that have not called it, as far as this rank can see.
  ArrivalWatch(base::TimePoint now, std::vector<int> missing)
      : begin_(now), looked_(now), missing_(std::move(missing)) {}

  /// These are missing now.
  void Look(base::TimePoint now, std::vector<int> missing) {
    Charge(now);
    missing_ = std::move(missing);
  }

  /// All had come at `arrived`, or the operation has ended without them.
  void End(base::TimePoint arrived) {
    Charge(arrived);
    missing_.clear();
    lateness_.total = arrived > begin_ ? arrived - begin_ : base::Duration(0);
  }

  void AddTo(Lateness& sum) const {
    sum.total += lateness_.total;
    if (sum.by_rank.size() < lateness_.by_rank.size()) sum.by_rank.resize(lateness_.by_rank.size());
    for (size_t rank = 0; rank < lateness_.by_rank.size(); ++rank)
      sum.by_rank[rank] += lateness_.by_rank[rank];
  }

 private:
  void Charge(base::TimePoint now) {
    if (now <= looked_) return;
    for (const int rank : missing_) {
      const auto index = static_cast<size_t>(rank);
      if (lateness_.by_rank.size() <= index) lateness_.by_rank.resize(index + 1);
      lateness_.by_rank[index] += now - looked_;
    }
    looked_ = now;
  }

  base::TimePoint begin_, looked_;
  std::vector<int> missing_;
  Lateness lateness_;
};

}  // namespace dtrun::ops

#endif
