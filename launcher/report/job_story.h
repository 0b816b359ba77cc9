#ifndef DTRUN_LAUNCHER_REPORT_JOB_STORY_H_
#define DTRUN_LAUNCHER_REPORT_JOB_STORY_H_

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "base/flight_record.h"
#include "base/launch_env.h"
#include "launcher/protocol/exit_record.h"

namespace dtrun::launcher {

/// All that is known of a job when it has ended, or could not start.
struct JobStory {
  std::vector<std::string> command;
  std::vector<base::HostSlots> hosts;             ///< of the ranks
  std::chrono::system_clock::time_point started;  ///< dtrun itself
  int64_t started_ns = 0;                         ///< the same moment on the monotonic clock
  int64_t ended_ns = 0;
  Verdict verdict = {0, ""};                        ///< of the job; its code is dtrun's exit code
  std::vector<ExitRecord> records = {};             ///< of ranks that were seen, in any order
  std::vector<base::FlightRecord> flights = {};     ///< in rank order
  std::vector<base::FlightProgress> progress = {};  ///< likewise: how far they came
  std::string last_lines = {};                      ///< of the culprit on stderr
  int servers = 0;                                  ///< ranks that held variables
};

enum class RankRole {
  kNotSeen,    ///< it never started
  kEndedWell,  ///< exit code 0, 75 (has saved), or in good order
  kCulprit,    ///< for which the job ended
  kLost,       ///< failed, and the job went on without it
  kGaveUp,     ///< waited for the culprit until its deadline
  kVictim,     ///< ended by dtrun or Open MPI because of the culprit
  kFailed,     ///< failed by itself, after the culprit
  kEnded,      ///< ended by dtrun or Open MPI in a job without a culprit
};

/// "ended well" and so on.
const char* NameOf(RankRole role);

/// The rank to blame where others gave up waiting: the one that was stopped; the only one that is
/// behind them, if there is just one; otherwise the verdict's.
int CulpritOf(
    const Verdict& verdict, const std::vector<ExitRecord>& records,
    const std::vector<base::FlightRecord>& flights);

RankRole RoleOf(const JobStory& story, int rank);

/// Nothing when the rank was not seen.
const ExitRecord* RecordOf(const JobStory& story, int rank);

/// What the culprit was doing, as its flight record says: "waited in collective #12, barrier"; ""
/// when there is none or it has called nothing.
std::string ActivityOf(const JobStory& story, int rank);

/// The moment of a time on the monotonic clock.
std::chrono::system_clock::time_point TimeOf(const JobStory& story, int64_t ns);

}  // namespace dtrun::launcher

#endif
