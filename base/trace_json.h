#ifndef DTRUN_BASE_TRACE_JSON_H_
#define DTRUN_BASE_TRACE_JSON_H_

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/trace.h"

namespace dtrun::base {

/// How the clock of a rank's host stands to that of the timeline.
struct ClockOffset {
  int64_t offset_ns = 0;       ///< subtracted from the rank's times
  int64_t uncertainty_ns = 0;  ///< the true one differs by no more
};

/// The trace of a rank and its clock. Read when it is needed: a job's traces are large.
struct TraceSource {
  ClockOffset clock;
  std::function<std::optional<RankTrace>()> read;
};

/// Writes the timeline of all ranks as JSON in the trace event format of Chrome and Perfetto, in
/// pieces. One process per rank; in it a row for each thread, with the reducers' steps,
/// computation, waits and marks, and rows of collectives, each from its start on this rank over the
/// arrival of all ranks to its end. An arrow goes through the starts of a collective on all ranks,
/// in their order, and a message has one. Names may hold any bytes. `metadata` are names and JSON
/// values for otherData, to which ranks, clocks and dropped records are added.
void WriteTraceJson(
    const std::vector<TraceSource>& sources,
    const std::vector<std::pair<std::string, std::string>>& metadata,
    const std::function<void(const std::string& piece)>& write);

/// Any bytes as a JSON string, with its quotes; what is no UTF-8 becomes U+FFFD.
std::string JsonString(const std::string& text);

}  // namespace dtrun::base

#endif
