#ifndef DTRUN_OPS_DOORBELL_H_
#define DTRUN_OPS_DOORBELL_H_

#include <atomic>
#include <cstdint>

#include "base/clock.h"

namespace dtrun::ops {

/// Wakes the threads of one rank, from any process that maps it: one wait point for everything a
/// rank can wait for. It lies in shared memory and is valid when zeroed.
///
///   the sleeper:  ticket = bell.Prepare();  look whether there is work;  if not,
///   bell.Sleep(ticket, deadline); a peer:       publish the work;  bell.Ring();
///
/// Ring costs a fence and a load while nobody sleeps. A ring between Prepare and Sleep is not lost:
/// Sleep returns at once.
class Doorbell {
 public:
  /// Announces a sleeper. Every Prepare is followed by one Sleep or Cancel.
  uint32_t Prepare() {
    sleepers_.fetch_add(1, std::memory_order_seq_cst);
    return rings_.load(std::memory_order_seq_cst);
  }
  void Cancel() { sleepers_.fetch_sub(1, std::memory_order_relaxed); }
  /// Returns after a ring since Prepare, after `timeout`, or for no reason.
  void Sleep(uint32_t ticket, base::Duration timeout);

  void Ring() {
    // Orders what was published before the look at the sleepers; pairs with the fetch_add of
    // Prepare.
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (sleepers_.load(std::memory_order_relaxed) != 0) Wake();
  }

 private:
  void Wake();

  std::atomic<uint32_t> rings_;
  std::atomic<uint32_t> sleepers_;
};

}  // namespace dtrun::ops

#endif
