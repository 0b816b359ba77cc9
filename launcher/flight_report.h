#ifndef DTRUN_LAUNCHER_FLIGHT_REPORT_H_
#define DTRUN_LAUNCHER_FLIGHT_REPORT_H_

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

}  // namespace dtrun::launcher

#endif
