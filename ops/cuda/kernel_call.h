#ifndef DTRUN_OPS_CUDA_KERNEL_CALL_H_
#define DTRUN_OPS_CUDA_KERNEL_CALL_H_

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/process.h"
#include "ops/bootstrap/segment.h"
#include "ops/collective/collective.h"
#include "ops/cuda/kernel_protocol.h"
#include "ops/engine/progress_engine.h"

namespace dtrun::ops::cuda {

/// What a rank tells its kernel of a call.
struct Plan {
  /// All but the group, the addresses, the regions and kReachable.
  CollectiveArgs args = {};
  /// The same on all ranks, when their calls agree.
  uint32_t blocks = 1;
  uint32_t threads = kLeastThreads;
  /// Whether others read this rank's input, and write its output.
  bool input_is_read = false, output_is_written = false;
};

/// Data up to this size is staged, in bytes that a rank brings for another one, times the other
/// ranks.
constexpr uint64_t kMostStagedBytes = 512 << 10;

/// `collective` has been checked, and is no message. At most `most_blocks` blocks.
Plan MakePlan(const Collective& collective, int rank, int size, uint32_t most_blocks);

/// A digest of what all ranks have to call alike, of any number of ranks.
uint64_t SignatureOf(const Collective& collective, int rank, int size);

/// Looks, on a thread of its own, whether a kernel waits too long for those of other ranks, or in
/// vain, and makes it leave. Kernels in graphs are watched as well: it knows nothing of calls but
/// what they report themselves.
class Watch {
 public:
  /// All outlive it: `count` reports of this rank's kernels. Without an engine, where nothing has
  /// to be waited for, it never ends a wait.
  Watch(Report* reports, int count, const Engine* engine);
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

 private:
  // What it has seen of the calls under way of one report.
  struct Seen {
    uint32_t begun = 0;
    base::TimePoint since = {};
  };

  void Run();
  void Look(Report& report, Seen& seen, base::TimePoint now) const;

  Report* reports_;
  std::vector<Seen> seen_;
  const Engine* engine_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ends_ = false;  // guarded by mutex_
  std::thread thread_;
};

/// What the ranks of a host have enqueued last, in memory that all of them map, for the texts of
/// errors. Each writes its own and reads those of the others when something has failed.
class CallLog {
 public:
  static constexpr uint64_t kKept = 128;  // calls of a rank

  /// `segments`: one of Bytes() for each rank.
  CallLog(std::vector<std::shared_ptr<Segment>> segments, int rank);
  static uint64_t Bytes();

  /// This rank's call `number`, counted from 1.
  void Write(uint32_t number, const Collective& collective);
  /// Whether this rank has given back its memory `region`, which the others may then unmap.
  void MarkFreed(uint32_t region, bool freed);
  bool IsFreed(int rank, uint32_t region) const;

  /// In which way the calls with these numbers, by rank, disagree: "rank 0 called ...; rank 1
  /// called
  /// ...".
  std::string Disagreement(const uint32_t* numbers, const Members& members) const;
  bool IsMessage(int rank, uint32_t number) const;
  /// "all_reduce (f32, 4 elements, sum)", of one rank.
  std::string Describe(int rank, uint32_t number) const;

 private:
  struct Entry;
  struct Page;
  Page& page(int rank) const;
  const Entry* Find(int rank, uint32_t number) const;

  std::vector<std::shared_ptr<Segment>> segments_;
  int rank_;
};

}  // namespace dtrun::ops::cuda

#endif  // DTRUN_OPS_CUDA_KERNEL_CALL_H_
