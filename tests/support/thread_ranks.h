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

/// Runs `rank_main` on `size` ranks. Each rank is a thread of this process with its own bootstrap.
/// Returns the error of each rank in rank order ("" for none). Ranks share segments by address, so
/// a sanitizer sees one memory.
Texts RunRanks(int size, const std::function<void(ops::Bootstrap&)>& rank_main);

/// The result of RunRanks for `size` ranks without errors.
inline Texts Nothing(int size) { return Texts(static_cast<size_t>(size)); }

/// A check on the thread of a rank, where Catch's macros must not be used.
inline void Expect(bool holds, const std::string& what) {
  if (!holds) throw std::runtime_error("not so: " + what);
}

/// Returns when another rank is known to wait. `record` is the flight recorder of that rank. It is
/// null until that rank has finished its earlier operations, because the end of a wait counts as
/// well.
void ReturnWhenWaitedFor(const std::atomic<ops::FlightRecorder*>& record);

}  // namespace dtrun::testing

#endif
