#include "ops/doorbell.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <ctime>

namespace dtrun::ops {
namespace {

// The futex calls have no wrapper in the C library. Not FUTEX_PRIVATE: the word is shared between
// processes.
long Futex(std::atomic<uint32_t>& word, int operation, uint32_t value, const timespec* timeout) {
  return ::syscall(
      SYS_futex, reinterpret_cast<uint32_t*>(&word), operation, value, timeout, nullptr, 0);
}

}  // namespace

void Doorbell::Sleep(uint32_t ticket, base::Duration timeout) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(timeout);
  const timespec relative{seconds.count(), (timeout - seconds).count()};
  if (timeout > base::Duration::zero()) Futex(rings_, FUTEX_WAIT, ticket, &relative);
  Cancel();
}

void Doorbell::Wake() {
  rings_.fetch_add(1, std::memory_order_seq_cst);
  Futex(rings_, FUTEX_WAKE, INT_MAX, nullptr);
}

}  // namespace dtrun::ops
