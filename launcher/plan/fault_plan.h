#ifndef DTRUN_LAUNCHER_PLAN_FAULT_PLAN_H_
#define DTRUN_LAUNCHER_PLAN_FAULT_PLAN_H_

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/flight_record.h"
#include "base/launch_env.h"

namespace dtrun::launcher {

/// A fault that dtrun makes on purpose (--inject).
struct Fault {
  enum class Kind {
    kKill,     ///< SIGKILL to the program of a rank
    kStop,     ///< SIGSTOP, and SIGCONT after `duration`
    kSlow,     ///< the program of a rank runs only a part of the time: 1 / `factor`
    kCorrupt,  ///< a rank damages a bucket of its gradients
    kDrop,     ///< ends all processes of a host, as if the host were gone
  };
  using Duration = std::chrono::milliseconds;

  Kind kind = Kind::kKill;
  int rank = -1;          ///< launch number; -1: a host
  std::string host = {};  ///< for kDrop
  int bucket = 0;         ///< for kCorrupt
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
///   20s; corrupt bucket 0 of rank 1 at step 4; random 20 in 60s seed 7
///
/// Times are seconds ("5s", "0.5s"). `slow` may be without `at`. `random` makes so many kills and
/// stops of random ranks, at random times up to the given one. The job starts with `ranks` ranks;
/// `hosts` are all that it may use. Throws UsageError with the item that is wrong.
std::vector<Fault> ParseFaults(
    const std::string& text, int ranks, const std::vector<base::HostSlots>& hosts);

/// The faults of the list that ranks make themselves.
std::vector<base::Corruption> CorruptionsIn(const std::vector<Fault>& faults);

/// Decides when the faults of --inject happen. Pure: the caller passes the time and the steps of
/// the ranks, and carries out the actions.
class FaultInjector {
 public:
  using Time = std::chrono::steady_clock::time_point;

  FaultInjector(std::vector<Fault> faults, Time start);

  struct Action {
    int rank = -1;
    int signal = 0;          ///< for the program of the rank; 0: none
    std::string host = {};   ///< to drop; "": none
    std::string fault = {};  ///< the text of a fault that begins; "": an earlier fault goes on
  };
  /// The actions that are due. `progress` has the last steps of the ranks.
  std::vector<Action> Take(Time now, const std::vector<base::FlightProgress>& progress);

  /// How soon Take is to be called again.
  std::chrono::milliseconds Pause(Time now) const;
  /// Whether some fault waits for a step.
  bool wants_progress() const;

 private:
  struct Planned {
    Fault fault;
    bool has_begun = false, is_over = false;
    Time next = {};  // of a fault that has begun: when to signal next
    bool is_stopped = false;
  };

  bool IsDue(const Planned& planned, Time now, const std::vector<base::FlightProgress>&) const;
  static void GoOn(Planned& planned, Time now, std::vector<Action>& actions);

  std::vector<Planned> planned_;
  Time start_;
};

}  // namespace dtrun::launcher

#endif  // DTRUN_LAUNCHER_PLAN_FAULT_PLAN_H_
