#ifndef DTRUN_TESTS_SUPPORT_THREAD_RANKS_H_
#define DTRUN_TESTS_SUPPORT_THREAD_RANKS_H_

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ops/bootstrap/bootstrap.h"
#include "ops/engine/flight_recorder.h"

namespace dtrun::testing {

/// Runs `rank_main` as `size` ranks, each a thread of this process with a bootstrap of its own, and
/// returns what each threw
/// ("" if nothing), in rank order. Ranks share segments by address, so a sanitizer sees one memory.
std::vector<std::string> RunRanks(int size, const std::function<void(ops::Bootstrap&)>& rank_main);

/// Returns when another rank is known to wait. `record` is that rank's, null until it has left its
/// earlier operations: a wait that ends counts as one, too.
void ReturnWhenWaitedFor(const std::atomic<ops::FlightRecorder*>& record);

}  // namespace dtrun::testing

#endif
