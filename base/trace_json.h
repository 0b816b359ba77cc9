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

/// Writes the timeline of all ranks in pieces, as JSON in the trace event format of Chrome and
/// Perfetto. Each rank is a process. A row for each thread has the reducers' steps, computation,
/// waits and marks. Further rows have collectives, each from its start on this rank, over the
/// arrival of all ranks, to its end. An arrow goes through the starts of a collective on all ranks,
/// in their order. A message also has an arrow. Names may hold any bytes. `metadata` are names and
/// JSON values for otherData. Ranks, clocks and dropped records are added to otherData.
void WriteTraceJson(
    const std::vector<TraceSource>& sources,
    const std::vector<std::pair<std::string, std::string>>& metadata,
    const std::function<void(const std::string& piece)>& write);

/// Returns any bytes as a JSON string, with its quotes. Invalid UTF-8 becomes U+FFFD.
std::string JsonString(const std::string& text);

}  // namespace dtrun::base

#endif
