#ifndef DTRUN_LAUNCHER_PLAN_FAULT_PLAN_H_
#define DTRUN_LAUNCHER_PLAN_FAULT_PLAN_H_

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/launch_env.h"

namespace dtrun::launcher {

/// A fault that dtrun makes on purpose (--inject).
struct Fault {
  enum class Kind {
    kKill,  ///< SIGKILL to the program of a rank
    kStop,  ///< SIGSTOP, and SIGCONT after `duration`
    kSlow,  ///< the program of a rank runs only a part of the time: 1 / `factor`
    kDrop,  ///< ends all processes of a host, as if the host were gone
  };
  using Duration = std::chrono::milliseconds;

  Kind kind = Kind::kKill;
  int rank = -1;          ///< launch number; -1: a host
  std::string host = {};  ///< for kDrop
  /// The fault happens when the rank has made so many steps, or so long after the ranks were
  /// started.
  std::optional<uint64_t> step = std::nullopt;
  Duration at{0};
  Duration duration{0};
  double factor = 1;
  std::string text = {};  ///< "kill rank 1 at step 7"

  bool operator==(const Fault&) const = default;
};

/// Parses a list of faults, separated by semicolons:
///
///   kill rank 1 at step 7; stop rank 2 for 5s at step 9; slow rank 3 by 2x at 10s; drop host h2 at
///   20s; random 20 in 60s seed 7
///
/// Times are seconds ("5s", "0.5s"). `slow` may be without `at`. `random` makes so many kills and
/// stops of random ranks, at random times up to the given one. The job starts with `ranks` ranks;
/// `hosts` are all that it may use. Throws UsageError with the item that is wrong.
std::vector<Fault> ParseFaults(
    const std::string& text, int ranks, const std::vector<base::HostSlots>& hosts);

}  // namespace dtrun::launcher

#endif  // DTRUN_LAUNCHER_PLAN_FAULT_PLAN_H_
