#ifndef DTRUN_BASE_TRACE_JSON_H_
#define DTRUN_BASE_TRACE_JSON_H_

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/trace.h"

namespace dtrun::base {

/// The relation of the clock of a rank's host to the clock of the timeline.
struct ClockOffset {
  int64_t offset_ns = 0;       ///< subtracted from the rank's times
  int64_t uncertainty_ns = 0;  ///< the most that offset_ns differs from the true offset
};

/// The trace of a rank and its clock. `read` is called when the trace is needed, because the traces
/// of a job are large.
struct TraceSource {
  ClockOffset clock;
  std::function<std::optional<RankTrace>()> read;
};

/// A change of the job: ranks were lost or joined.
struct TracedChange {
  std::string name;
  int64_t begin_ns = 0;
  int64_t end_ns = 0;        ///< 0: the job ended first
  std::string details = {};  ///< further members of the event's arguments, as JSON
};

/// The time of the changes, on the clock of the timeline.
struct TracedChanges {
  std::vector<TracedChange> changes = {};
  int64_t end_ns = 0;  ///< of the job
};

/// Writes the timeline of all ranks in pieces, as JSON in the trace event format of Chrome and
/// Perfetto. Each rank is a process, in all epochs of the job. A row for each thread has the
/// reducers' steps, computation, waits and marks. Further rows have collectives, each from its
/// start on this rank, over the arrival of all ranks, to its end. Each named tensor has a row, with
/// its submissions, the agreement of the ranks and the move of its data. An arrow goes through the
/// starts of a collective on all ranks, in their order. A message also has an arrow. Names may hold
/// any bytes. `metadata` are names and JSON values for otherData. Ranks, clocks and dropped records
/// are added to otherData. The changes are slices of a process of their own, "job".
void WriteTraceJson(
    const std::vector<TraceSource>& sources,
    const std::vector<std::pair<std::string, std::string>>& metadata,
    const std::function<void(const std::string& piece)>& write, const TracedChanges& changes = {});

}  // namespace dtrun::base

#endif
