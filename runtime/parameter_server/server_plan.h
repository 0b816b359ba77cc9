#ifndef DTRUN_RUNTIME_PARAMETER_SERVER_SERVER_PLAN_H_
#define DTRUN_RUNTIME_PARAMETER_SERVER_SERVER_PLAN_H_

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "dtrun/types.h"
#include "runtime/tensor_file/tensor_file.h"

namespace dtrun::runtime {

/// Elements [first, first + count) of a variable: whole rows of its first axis, on one server.
struct VariableShard {
  size_t variable = 0;
  uint64_t first = 0, count = 0;
  int part = 0, parts = 1;  ///< index of this part; number of parts of the variable
  int server = 0;
  uint64_t offset = 0;  ///< bytes from the beginning of a block to the first element

  bool operator==(const VariableShard&) const = default;
};

/// The placement of all variables: the server of each part, and its offset in a block. A block is
/// the memory of a connection between a rank and a server: the gradients of all variables, then
/// their values. Every process of a job computes the same layout.
struct VariableLayout {
  std::vector<VariableShard> shards;  ///< by variable, then by row
  std::vector<uint64_t> offsets;      ///< by variable: bytes from the beginning of a block
  uint64_t half = 0;                  ///< bytes of all gradients; the values begin there
  std::string description;            ///< settings that must be equal in all processes, in lines

  uint64_t block_bytes() const { return 2 * half; }
  std::vector<VariableShard> OfServer(int server) const;
};

/// The rule for the number of parts of a variable. A part has at least one row.
struct PartitionRule {
  enum class Kind {
    kMinSize,      ///< parts of at least `number` bytes, at most one for each server
    kMaxSize,      ///< parts of at most `number` bytes
    kFixedShards,  ///< `number` parts of each variable
  };
  Kind kind = Kind::kMinSize;
  uint64_t number = 256 << 10;
};

/// Cuts each variable along its first axis into the parts of `rule`, and assigns the parts to the
/// servers round-robin, in their order. If the rows do not divide evenly, the first parts have one
/// more row ("div"):
///
///   13 rows, 5 parts   ->   3, 3, 3, 2, 2
///
/// Throws Error kInvalidArgument if there are no variables, and the errors of CheckTensors.
VariableLayout PlanVariables(
    const std::vector<Tensor>& variables, int servers, const PartitionRule& rule);

/// The steps of a training. Each step is handed out to a worker at least once. If a worker is lost,
/// its step goes to another worker. If some or all servers have applied the lost worker's gradient,
/// they apply a second gradient for that step. Pure.
class StepQueue {
 public:
  /// Steps [first, end). At most `most_out` steps are out at a time: handed out, but not done.
  StepQueue(uint64_t first, uint64_t end, uint64_t most_out);

  /// The next step below `end` for `worker`, which must not have a step. Returns nullopt if
  /// `most_out` steps are out, or no step below `end` is left to hand out.
  std::optional<uint64_t> Take(int worker, uint64_t end = UINT64_MAX);
  /// Steps below `first` are not handed out any more: a worker has begun a later epoch.
  void SkipTo(uint64_t first);
  /// No new step is handed out any more.
  void Close() { end_ = std::min(end_, next_); }
  /// The step of `worker` is done.
  void Done(int worker);
  /// Takes the step of `worker` back and returns it. Lost steps are handed out before new steps.
  /// Returns nullopt if the worker has no step, or a step that is not handed out any more.
  std::optional<uint64_t> Lose(int worker);

  /// True if no step below `end` is left to hand out, and no such step is out.
  bool over(uint64_t end = UINT64_MAX) const;
  /// True if each step that was handed out is done.
  bool idle() const { return again_.empty() && out_.empty(); }
  /// The number of steps done or skipped, including the steps before `first`.
  uint64_t done() const { return next_ - again_.size() - out_.size(); }
  /// The number of times that a step was taken back.
  uint64_t repeated() const { return repeated_; }

 private:
  uint64_t next_, end_, most_out_;
  uint64_t floor_ = 0;  // steps below are not handed out
  uint64_t repeated_ = 0;
  std::deque<uint64_t> again_;
  std::map<int, uint64_t> out_;  // by worker
};

/// Counts the updates of a server's variables, and decides when a gradient may be applied. The
/// staleness of a gradient is the number of updates between two versions of the values: the version
/// that the gradient was computed from, and the version that it is applied to. Compare Q. Ho et
/// al., "More effective distributed ML via a stale synchronous parallel parameter server", NIPS
/// 2013. That paper bounds the clocks of workers; this class bounds the staleness of gradients.
///
/// With a bound, every gradient in computation has a deadline: the version that it is computed
/// from, plus the bound. A gradient may be applied if all others can still meet their deadlines
/// after it, one after the other. The gradient with the earliest deadline is always allowed, so no
/// worker waits forever. At most bound + 1 gradients may be in computation at a time. StepQueue
/// enforces that limit.
///
/// Pure: it uses no time, sockets or threads.
class StalenessGate {
 public:
  explicit StalenessGate(std::optional<uint64_t> bound = std::nullopt) : bound_(bound) {}

  /// `worker` begins to compute a gradient from the current values.
  void Begin(int worker) { begun_[worker] = version_; }
  /// True if the gradient of `worker` may be applied now.
  bool MayApply(int worker) const;
  /// Counts the update with the gradient of `worker`. Returns the staleness of the gradient.
  uint64_t Apply(int worker);
  /// The gradient of `worker` will not come.
  void Forget(int worker) { begun_.erase(worker); }

  /// The number of updates so far.
  uint64_t version() const { return version_; }
  /// The number of updates, by staleness.
  const std::vector<uint64_t>& histogram() const { return histogram_; }

 private:
  std::optional<uint64_t> bound_;
  uint64_t version_ = 0;
  std::map<int, uint64_t> begun_;  // version, by worker
  std::vector<uint64_t> histogram_;
};

}  // namespace dtrun::runtime

#endif  // DTRUN_RUNTIME_PARAMETER_SERVER_SERVER_PLAN_H_
