#ifndef DTRUN_LAUNCHER_JOB_RANK_REPORTS_H_
#define DTRUN_LAUNCHER_JOB_RANK_REPORTS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "base/flight_record.h"
#include "launcher/job/supervisor.h"
#include "launcher/protocol/exit_record.h"
#include "launcher/protocol/frame.h"

namespace dtrun::launcher {

/// The ranks of one host.
using HostRanks = std::set<int>;

/// The agents' reports about the ranks. An agent may report only ranks of its own host. A frame
/// about another rank is refused, or ignored if it holds a flight record or progress. Pure.
class RankReports {
 public:
  /// Takes a frame from the agent of `ranks`, heard at `now_ns` on the monotonic clock. Ignores all
  /// types but kStarted, kEnded, kFlight, kNoticed, kProgress and kState. `clock_ns`: how far the
  /// clock of the agent's host is ahead of this host's; nullopt: not known. Throws LaunchError
  /// kInternal for a frame that contradicts protocol/frame.h.
  void Hear(
      const Frame& frame, const HostRanks& ranks, int64_t now_ns,
      std::optional<int64_t> clock_ns = std::nullopt);

  /// Marks the running ranks among these as ended with their host: no more reports will come.
  /// `also_ended`: marks also those that have failed, because they could have been started again.
  void LoseHost(const HostRanks& ranks, int64_t now_ns, bool also_ended = false);

  /// The records of all ranks whose wrappers have connected to an agent.
  std::vector<ExitRecord> records() const;
  /// The flight records, in rank order.
  std::vector<base::FlightRecord> flights() const;
  /// The number of ranks with a running program.
  int running() const;
  /// The progress reports since the last call.
  std::vector<base::FlightProgress> TakeProgress();
  /// The last progress report of each rank, in rank order.
  std::vector<base::FlightProgress> progress() const;

  /// The answers of `ranks` to notices since ForgetAnswers. A rank without a report is starting.
  NoticeAnswers answers(const HostRanks& ranks, int64_t now_ns) const;
  void ForgetAnswers() { takes_notices_.clear(); }

 private:
  void HearEnd(const Frame& frame, int64_t now_ns, std::optional<int64_t> clock_ns);
  void HearState(const Frame& frame, int64_t now_ns);
  void HearFlight(const Frame& frame);
  void HearProgress(const Frame& frame, const HostRanks& ranks);
  ExitRecord& RecordOf(int rank);

  std::vector<ExitRecord> records_;
  std::map<int, base::FlightRecord> flights_;  // by rank
  std::vector<base::FlightProgress> new_progress_;
  std::map<int, base::FlightProgress> progress_;  // by rank
  std::map<int, bool> takes_notices_;             // by rank
};

/// Throws LaunchError kInternal if the frame is about a rank outside `ranks`.
void CheckRank(const Frame& frame, const HostRanks& ranks);

}  // namespace dtrun::launcher

#endif
