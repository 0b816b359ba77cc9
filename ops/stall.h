#ifndef DTRUN_OPS_STALL_H_
#define DTRUN_OPS_STALL_H_

#include <string>

#include "base/clock.h"
#include "ops/engine.h"
#include "ops/flight_recorder.h"

namespace dtrun::ops {

/// What an operation is, whom it waits for, and what each of these did last, as far as `records`
/// (which may be null) tells:
///   "collective #12, all_reduce (f32, 4 elements, sum), waits for ranks 1 and 3 to call it; rank 1
///   last finished collective #11, barrier, 31 s ago; rank 3 is in collective #9, broadcast (f32, 7
///   elements, root 0), since 45 s"
std::string DescribeStall(
    const Operation& operation, const PeerRecords& records, base::TimePoint now);

}  // namespace dtrun::ops

#endif
