#ifndef DTRUN_RUNTIME_PARAMETER_SERVER_STALENESS_GATE_H_
#define DTRUN_RUNTIME_PARAMETER_SERVER_STALENESS_GATE_H_

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

namespace dtrun::runtime {

/// Counts the updates of a server's variables, and decides when a gradient may be the next one. The
/// staleness of a gradient is the number of updates between the values that it was computed from
/// and those that it is applied to (Q. Ho et al., "More effective distributed ML via a stale
/// synchronous parallel parameter server", NIPS 2013, bound the clocks of workers; this bounds what
/// their gradients meet).
///
/// With a bound, every gradient that is being computed has a deadline: the version that it was
/// computed from, plus the bound. An update may go first if all others can still keep theirs, one
/// after the other. The one with the earliest deadline always may, so nobody waits for ever; at
/// most bound + 1 gradients may be computed at a time (StepQueue sees to that).
///
/// Pure: it knows no time, no sockets and no threads.
class StalenessGate {
 public:
  explicit StalenessGate(std::optional<uint64_t> bound = std::nullopt) : bound_(bound) {}

  /// `worker` computes a gradient from the values as they are now.
  void Begin(int worker) { begun_[worker] = version_; }
  /// Whether its gradient may be applied now.
  bool MayApply(int worker) const;
  /// It is; returns its staleness.
  uint64_t Apply(int worker);
  /// It will not come.
  void Forget(int worker) { begun_.erase(worker); }

  /// Updates so far.
  uint64_t version() const { return version_; }
  /// By staleness: how many updates had it.
  const std::vector<uint64_t>& histogram() const { return histogram_; }

 private:
  std::optional<uint64_t> bound_;
  uint64_t version_ = 0;
  std::map<int, uint64_t> begun_;  // version, by worker
  std::vector<uint64_t> histogram_;
};

}  // namespace dtrun::runtime

#endif
