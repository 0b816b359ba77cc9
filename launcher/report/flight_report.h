#ifndef DTRUN_LAUNCHER_REPORT_FLIGHT_REPORT_H_
#define DTRUN_LAUNCHER_REPORT_FLIGHT_REPORT_H_

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/flight_record.h"

namespace dtrun::launcher {

/// The readable records of ranks [0, ranks) in `folder`, in rank order.
std::vector<base::FlightRecord> ReadFlightRecords(const std::string& folder, int ranks);

/// The last activity of every rank, on one line. Ranks with the same activity are named together.
/// "": no rank has called an operation.
///   "ranks 0, 2 and 3 waited in collective #12, all_reduce (f32, 4 elements, sum); rank 1 last
///   finished collective #11, barrier"
std::string FlightSummary(const std::vector<base::FlightRecord>& records);

/// All records as JSON: a list of all ranks with their operations, oldest first. Times are in
/// microseconds since 1970. A rank without a record has the reason instead.
std::string FlightJson(const std::vector<base::FlightRecord>& records, int ranks);

/// A rank that has not called the collective in which other ranks of its communicator wait.
struct LaggingRank {
  int rank = 0;
  uint64_t behind = 0;  ///< collectives that it has not called, up to and with that one
  /// The collective in which the rank waits, otherwise the last one that it finished; nullopt:
  /// none.
  std::optional<base::FlightOperation> last = std::nullopt;
};

/// A communicator in which some ranks wait for others.
struct FlightLag {
  std::string communicator;
  base::FlightOperation front;       ///< the last collective in which ranks wait
  std::vector<int> waiting = {};     ///< ranks in that collective, in rank order
  std::vector<LaggingRank> lagging;  ///< in rank order, at least one
};

/// The ranks that were behind when the records ended. Sequence numbers are comparable only within a
/// communicator. Only proved lags are reported: if a rank's record no longer reaches back to the
/// communicator, the rank is left out.
std::vector<FlightLag> FindLags(const std::vector<base::FlightRecord>& records);

/// "rank 1 is 3 collectives behind on world: it last finished #118, barrier; ranks 0, 2 and 3 wait
/// in #121, all_reduce (f32, 16384 elements, sum)"
std::string LagText(const FlightLag& lag);

nlohmann::json JsonOf(const FlightLag& lag);

}  // namespace dtrun::launcher

#endif  // DTRUN_LAUNCHER_REPORT_FLIGHT_REPORT_H_
