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

/// A loss or gain of ranks, from the first end until all ranks work together again.
struct Loss {
  std::string why = {};         ///< "rank 3 on h2 was killed by SIGKILL", "rank 4 on h3 joins"
  int epoch = 0;                ///< the last epoch that it has begun
  std::vector<int> ranks = {};  ///< lost, in the order of their ends; without any, it is a gain
  std::vector<int> left = {};   ///< those that the job goes on without
  std::vector<int> joined = {};
  int64_t lost_ns = 0;       ///< when the first of them ended
  int64_t recovered_ns = 0;  ///< when all ranks had joined again; 0: not yet
  /// The completed steps that are computed again: those after the kept state. -1: not known.
  int64_t steps_lost = -1;
};

/// The facts about a job that has ended or could not start.
struct JobStory {
  std::vector<std::string> command;
  std::vector<base::HostSlots> hosts;             ///< of the ranks
  std::chrono::system_clock::time_point started;  ///< when dtrun started
  int64_t started_ns = 0;                         ///< the same moment on the monotonic clock
  int64_t ended_ns = 0;
  Verdict verdict = {0, ""};                        ///< of the job; its code is dtrun's exit code
  std::vector<ExitRecord> records = {};             ///< of the ranks that were seen, in any order
  std::vector<base::FlightRecord> flights = {};     ///< in rank order
  std::vector<base::FlightProgress> progress = {};  ///< in rank order
  std::string last_lines = {};                      ///< last lines of the culprit on stderr
  int servers = 0;                                  ///< number of ranks that held variables
  std::vector<Loss> losses = {};                    ///< with --restarts
  std::vector<std::string> injected = {};           ///< the faults that dtrun made on purpose
};

enum class RankRole {
  kNotSeen,    ///< never started
  kEndedWell,  ///< exit code 0 or 75 (state saved), or left in good order
  kCulprit,    ///< the job ended because of it
  kLost,       ///< failed, and the job continued without it
  kGaveUp,     ///< waited for the culprit until its time limit
  kVictim,     ///< ended by dtrun or Open MPI because of the culprit
  kFailed,     ///< failed by itself, after the culprit
  kEnded,      ///< ended by dtrun or Open MPI in a job without a culprit
};

/// The name in reports: "ended well".
const char* NameOf(RankRole role);

/// The rank to blame if ranks gave up waiting: the first rank that was stopped, otherwise the only
/// rank that is behind. In all other cases, the culprit of the verdict.
int CulpritOf(
    const Verdict& verdict, const std::vector<ExitRecord>& records,
    const std::vector<base::FlightRecord>& flights);

RankRole RoleOf(const JobStory& story, int rank);

/// The record of a rank; nullptr: the rank was not seen.
const ExitRecord* RecordOf(const JobStory& story, int rank);

/// The last activity of a rank in its flight record: "waited in collective #12, barrier"; "": no
/// record, or no operation in it.
std::string ActivityOf(const JobStory& story, int rank);

/// The calendar time of a time on the monotonic clock.
std::chrono::system_clock::time_point TimeOf(const JobStory& story, int64_t ns);

}  // namespace dtrun::launcher

#endif
