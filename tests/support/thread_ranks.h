#ifndef DTRUN_TESTS_SUPPORT_THREAD_RANKS_H_
#define DTRUN_TESTS_SUPPORT_THREAD_RANKS_H_

#include <atomic>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "ops/bootstrap/bootstrap.h"
#include "ops/engine/flight_recorder.h"

namespace dtrun::testing {

using Texts = std::vector<std::string>;

/// Runs `rank_main` as `size` ranks, each a thread of this process with a bootstrap of its own, and
/// returns what each threw ("" if nothing), in rank order. Ranks share segments by address, so a
/// sanitizer sees one memory.
Texts RunRanks(int size, const std::function<void(ops::Bootstrap&)>& rank_main);

/// What `size` ranks throw if none of them fails.
inline Texts Nothing(int size) { return Texts(static_cast<size_t>(size)); }

/// A check on the thread of a rank, where Catch's own macros may not be used.
inline void Expect(bool holds, const std::string& what) {
  if (!holds) throw std::runtime_error("not so: " + what);
}

/// Returns when another rank is known to wait. `record` is that rank's, null until it has left its
/// earlier operations: a wait that ends counts as one, too.
void ReturnWhenWaitedFor(const std::atomic<ops::FlightRecorder*>& record);

}  // namespace dtrun::testing

#endif
