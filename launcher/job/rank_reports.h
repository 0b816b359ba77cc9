#ifndef DTRUN_LAUNCHER_JOB_RANK_REPORTS_H_
#define DTRUN_LAUNCHER_JOB_RANK_REPORTS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "base/flight_record.h"
#include "launcher/job/interruption.h"
#include "launcher/protocol/exit_record.h"
#include "launcher/protocol/frame.h"

namespace dtrun::launcher {

/// Ranks [first, first + count): those of one host.
struct RankRange {
  int first = 0;
  int count = 0;

  bool Contains(int rank) const { return rank >= first && rank - first < count; }
};

/// What the agents have told of the ranks. An agent speaks of the ranks of its own host alone;
/// whatever else it says is refused, for what is kept here is used without another look. Pure.
class RankReports {
 public:
  /// Takes a frame of the agent that has these ranks, heard at `now_ns` on the monotonic clock; of
  /// a type other than kStarted, kEnded, kFlight, kNoticed, kProgress and kState it does nothing.
  /// `clock_ns`: by how much the clock of the agent's host is ahead of this one's; nothing: not
  /// known. Throws LaunchError kInternal for a frame that is not what protocol/frame.h says.
  void Hear(
      const Frame& frame, const RankRange& ranks, int64_t now_ns,
      std::optional<int64_t> clock_ns = std::nullopt);

  /// Nothing will be heard of these ranks any more: those that ran have ended with their host.
  void LoseHost(const RankRange& ranks, int64_t now_ns);

  /// What is known of every rank whose wrapper was seen.
  std::vector<ExitRecord> records() const;
  /// In rank order.
  std::vector<base::FlightRecord> flights() const;
  /// Ranks whose program runs.
  int running() const;
  /// What has come since the last call.
  std::vector<base::FlightProgress> TakeProgress();
  /// The last that was told of every rank, in rank order.
  std::vector<base::FlightProgress> progress() const;

  /// The answers to notices since they were forgotten.
  NoticeAnswers answers() const;
  void ForgetAnswers() { takes_notices_.clear(); }

 private:
  void HearEnd(const Frame& frame, int64_t now_ns, std::optional<int64_t> clock_ns);
  void HearState(const Frame& frame, int64_t now_ns);
  void HearFlight(const Frame& frame);
  void HearProgress(const Frame& frame, const RankRange& ranks);
  ExitRecord& RecordOf(int rank);

  std::vector<ExitRecord> records_;
  std::map<int, base::FlightRecord> flights_;  // by rank
  std::vector<base::FlightProgress> new_progress_;
  std::map<int, base::FlightProgress> progress_;  // by rank
  std::map<int, bool> takes_notices_;             // by rank
};

/// Throws LaunchError kInternal for a frame about a rank that is none of these.
void CheckRank(const Frame& frame, const RankRange& ranks);

}  // namespace dtrun::launcher

#endif
