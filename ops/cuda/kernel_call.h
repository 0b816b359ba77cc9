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

/// The plan of a call: the arguments of its kernel, and the shape of the launch.
struct Plan {
  /// All fields but the group, the call's number and the addresses.
  CollectiveArgs args = {};
  /// The same on all ranks if their calls agree.
  uint32_t blocks = 1;
  uint32_t threads = kLeastThreads;
};

/// Plans a kernel of at most `most_blocks` blocks. `collective` has been checked, and is no
/// message.
Plan MakePlan(const Collective& collective, int rank, int size, uint32_t most_blocks);

/// Adds to `combines`, by input, the number of combinations of the last two values after that input
/// has come, for the tree over inputs [first, first + count). The right half is the smaller one.
void CountCombines(int first, int count, uint8_t* combines);

/// A digest of the parts of a call that all ranks must call alike. `size`: any number of ranks.
uint64_t SignatureOf(const Collective& collective, int rank, int size);

/// Watches the kernels of this rank from its own thread. If a kernel waits too long for other
/// ranks, or the job has lost a rank, the watch makes the kernel leave. It also watches kernels in
/// graphs, because it reads only the reports that kernels write themselves.
class Watch {
 public:
  /// Watches `count` reports of this rank's kernels. All arguments outlive the watch. Without an
  /// engine, there is no rank to wait for, and the watch never ends a wait.
  Watch(Report* reports, int count, const Engine* engine);
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

 private:
  // The last observation of one report: the call under way, and since when.
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

/// The last calls of all ranks of a host, for the texts of errors, in memory that all of them map.
/// Each rank writes its own calls, and reads the calls of the others when a call has failed.
class CallLog {
 public:
  static constexpr uint64_t kKept = 128;  // calls of a rank

  /// `segments`: one of Bytes() for each rank.
  CallLog(std::vector<std::shared_ptr<Segment>> segments, int rank);
  static uint64_t Bytes();

  /// This rank's call `number`, counted from 1.
  void Write(uint32_t number, const Collective& collective);

  /// Describes how the calls with these numbers, by rank, disagree: "rank 0 called ...; rank 1
  /// called ...".
  std::string Disagreement(const uint32_t* numbers, const Members& members) const;
  bool IsMessage(int rank, uint32_t number) const;
  /// Describes the call of one rank: "all_reduce (f32, 4 elements, sum)".
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
