#ifndef DTRUN_OPS_BOOTSTRAP_THREAD_BOOTSTRAP_H_
#define DTRUN_OPS_BOOTSTRAP_THREAD_BOOTSTRAP_H_

#include <memory>

#include "ops/bootstrap/bootstrap.h"

namespace dtrun::ops {

struct ThreadMeetings;

/// Ranks that are threads of one process. They share segments by address. Each thread makes its own
/// bootstrap with `Join`, all with the same ThreadRanks, which they keep alive. Thread-safe.
class ThreadRanks {
 public:
  explicit ThreadRanks(int size);

  int size() const { return size_; }
  /// The bootstrap of rank `rank`. Each rank joins once.
  std::unique_ptr<Bootstrap> Join(int rank) const;

 private:
  int size_;
  std::shared_ptr<ThreadMeetings> meetings_;
};

}  // namespace dtrun::ops

#endif  // DTRUN_OPS_BOOTSTRAP_THREAD_BOOTSTRAP_H_
