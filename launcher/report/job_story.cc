// CulpritOf corrects the verdict if its culprit only gave up waiting for another rank. RoleOf gives
// each rank its role from the verdict and the rank's record.

#include "launcher/report/job_story.h"

#include <signal.h>

#include <algorithm>
#include <set>

#include "launcher/report/flight_report.h"
#include "launcher/support/launch_error.h"

namespace dtrun::launcher {
namespace {

// Whether dtrun or Open MPI ended the rank. A rank that fails because a peer is gone has ended by
// itself.
bool WasEnded(const ExitRecord& record) {
  return record.end == RankEnd::kRunning ||
         (record.end == RankEnd::kSignaled && (record.value == SIGTERM || record.value == SIGKILL));
}

bool EndedWell(const ExitRecord& record) {
  return record.end == RankEnd::kExited && record.gave_up.empty() &&
         (record.value == 0 || record.value == static_cast<int>(ExitCode::kPreempted) ||
          record.in_order);
}

}  // namespace

const char* NameOf(RankRole role) {
  switch (role) {
    case RankRole::kNotSeen: return "not started";
    case RankRole::kEndedWell: return "ended well";
    case RankRole::kCulprit: return "culprit";
    case RankRole::kLost: return "lost";
    case RankRole::kGaveUp: return "gave up";
    case RankRole::kVictim: return "victim";
    case RankRole::kFailed: return "failed";
    case RankRole::kEnded: return "ended";
  }
  return "unknown";
}

const ExitRecord* RecordOf(const JobStory& story, int rank) {
  const auto found = std::find_if(
      story.records.begin(), story.records.end(),
      [&](const ExitRecord& record) { return record.rank == rank; });
  return found == story.records.end() ? nullptr : &*found;
}

namespace {

bool IsShutdown(const base::FlightOperation& operation) {
  return static_cast<base::CollectiveKind>(operation.call.kind) == base::CollectiveKind::kShutdown;
}

}  // namespace

// Ranks that wait in Shutdown have left the other ranks, so they are to blame. The exception is a
// front at which the verdict's culprit waits too.
int CulpritOf(
    const Verdict& verdict, const std::vector<ExitRecord>& records,
    const std::vector<base::FlightRecord>& flights) {
  const bool gave_up = std::any_of(records.begin(), records.end(), [&](const ExitRecord& record) {
    return record.rank == verdict.culprit && !record.gave_up.empty();
  });
  if (!gave_up) return verdict.culprit;
  const ExitRecord* stopped = nullptr;
  for (const ExitRecord& record : records)
    if (WasStopped(record) &&
        (stopped == nullptr || record.state.stopped_ns < stopped->state.stopped_ns))
      stopped = &record;
  if (stopped != nullptr) return stopped->rank;
  std::set<int> lagging;
  for (const FlightLag& lag : FindLags(flights)) {
    const auto& waiting = lag.waiting;
    const bool left = IsShutdown(lag.front) &&
                      std::find(waiting.begin(), waiting.end(), verdict.culprit) == waiting.end();
    if (left) {
      lagging.insert(waiting.begin(), waiting.end());
    } else {
      for (const LaggingRank& rank : lag.lagging) lagging.insert(rank.rank);
    }
  }
  return lagging.size() == 1 ? *lagging.begin() : verdict.culprit;
}

RankRole RoleOf(const JobStory& story, int rank) {
  const ExitRecord* record = RecordOf(story, rank);
  if (record == nullptr) return RankRole::kNotSeen;
  if (story.verdict.culprit == rank) return RankRole::kCulprit;
  if (record->spared) return RankRole::kLost;
  if (EndedWell(*record)) return RankRole::kEndedWell;
  if (!record->gave_up.empty()) return RankRole::kGaveUp;
  if (!WasEnded(*record)) return RankRole::kFailed;
  return story.verdict.culprit >= 0 ? RankRole::kVictim : RankRole::kEnded;
}

std::string ActivityOf(const JobStory& story, int rank) {
  for (const base::FlightRecord& flight : story.flights)
    if (flight.rank == rank && !flight.operations.empty()) return base::PastActivity(flight);
  return "";
}

std::chrono::system_clock::time_point TimeOf(const JobStory& story, int64_t ns) {
  const std::chrono::nanoseconds since(ns - story.started_ns);
  return story.started + std::chrono::duration_cast<std::chrono::system_clock::duration>(since);
}

}  // namespace dtrun::launcher
