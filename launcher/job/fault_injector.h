#ifndef DTRUN_LAUNCHER_JOB_FAULT_INJECTOR_H_
#define DTRUN_LAUNCHER_JOB_FAULT_INJECTOR_H_

#include <chrono>
#include <string>
#include <vector>

#include "base/flight_record.h"
#include "launcher/plan/fault_plan.h"

namespace dtrun::launcher {

/// Decides when the faults of --inject happen. Pure: the caller passes the time and the steps of
/// the ranks, and carries out the actions.
class FaultInjector {
 public:
  using Time = std::chrono::steady_clock::time_point;

  FaultInjector(std::vector<Fault> faults, Time start);

  struct Action {
    int rank = -1;
    int signal = 0;          ///< for the program of the rank; 0: drop the host
    std::string host = {};   ///< to drop
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

#endif  // DTRUN_LAUNCHER_JOB_FAULT_INJECTOR_H_
