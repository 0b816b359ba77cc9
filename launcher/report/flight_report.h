#ifndef DTRUN_LAUNCHER_REPORT_FLIGHT_REPORT_H_
#define DTRUN_LAUNCHER_REPORT_FLIGHT_REPORT_H_

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/flight_record.h"

namespace dtrun::launcher {

/// The records of ranks [0, ranks) that lie in `folder` and can be read, in rank order.
std::vector<base::FlightRecord> ReadFlightRecords(const std::string& folder, int ranks);

/// What every rank was doing when it ended, on one line, ranks with the same answer together; ""
/// when none has called anything:
///   "ranks 0, 2 and 3 waited in collective #12, all_reduce (f32, 4 elements, sum); rank 1 last
///   finished collective #11, barrier"
std::string FlightSummary(const std::vector<base::FlightRecord>& records);

/// All records as JSON: a list of all ranks, each with its operations, oldest first, times in
/// microseconds since 1970; of a rank without a record, why there is none.
std::string FlightJson(const std::vector<base::FlightRecord>& records, int ranks);

/// A rank that has not called the collective in which others of its communicator wait.
struct LaggingRank {
  int rank = 0;
  uint64_t behind = 0;  ///< collectives between its last call and that one, itself too
  /// What it waited in itself, else what it finished last, else nothing: it has called none.
  std::optional<base::FlightOperation> last = std::nullopt;
};

/// One communicator, some ranks of which wait for others.
struct FlightLag {
  std::string communicator;
  base::FlightOperation front;       ///< the last collective that ranks wait in
  std::vector<int> waiting = {};     ///< in that one, in rank order
  std::vector<LaggingRank> lagging;  ///< in rank order, one at least
};

/// Who had fallen behind when the records ended. Sequence numbers mean something within a
/// communicator alone, and only what the records prove is said: a rank whose record no longer
/// reaches back to the communicator is left out.
std::vector<FlightLag> FindLags(const std::vector<base::FlightRecord>& records);

/// "rank 1 is 3 collectives behind on world: it last finished #118, barrier; ranks 0, 2 and 3 wait
/// in #121, all_reduce (f32, 16384 elements, sum)"
std::string LagText(const FlightLag& lag);

nlohmann::json JsonOf(const FlightLag& lag);

}  // namespace dtrun::launcher

#endif  // DTRUN_LAUNCHER_REPORT_FLIGHT_REPORT_H_
