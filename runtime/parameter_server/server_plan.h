#ifndef DTRUN_RUNTIME_PARAMETER_SERVER_SERVER_PLAN_H_
#define DTRUN_RUNTIME_PARAMETER_SERVER_SERVER_PLAN_H_

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "dtrun/types.h"
#include "runtime/tensor_file/tensor_file.h"

namespace dtrun::runtime {

/// Elements [first, first + count) of a variable, which one server holds: whole rows of its first
/// axis.
struct VariableShard {
  size_t variable = 0;
  uint64_t first = 0, count = 0;
  int part = 0, parts = 1;  ///< of those that the variable is cut into
  int server = 0;
  uint64_t offset = 0;  ///< bytes from the beginning of a block to the first element

  bool operator==(const VariableShard&) const = default;
};

/// Where every variable lies: which server holds which part of it, and where in a block. A block is
/// the memory of a connection between a rank and a server: the gradients of all variables, then
/// their values. Every process of a job plans the same.
struct VariableLayout {
  std::vector<VariableShard> shards;  ///< by variable, then by row
  std::vector<uint64_t> offsets;      ///< by variable: bytes from the beginning of a block
  uint64_t half = 0;                  ///< bytes of all gradients, and where the values begin
  std::string description;            ///< what has to be the same in all processes, in lines

  uint64_t block_bytes() const { return 2 * half; }
  std::vector<VariableShard> OfServer(int server) const;
};

/// Variables are dealt to the servers round-robin, in their order. One of at least twice
/// `min_partition_bytes` is cut along its first axis first, into parts of at least that size, as
/// many as there are servers at most, of which the first ones have a row more ("div"):
///
///   13 rows, 5 servers   ->   3, 3, 3, 2, 2
///
/// Throws Error kInvalidArgument for no variable, two of a name, one whose shape does not fit its
/// count, or one outside host memory.
VariableLayout PlanVariables(
    const std::vector<Tensor>& variables, int servers, uint64_t min_partition_bytes);

/// The steps of a training, handed out to workers: each at least once. That of a worker which is
/// lost goes to another one, and is then done twice if its gradient had been applied already, by
/// all servers or by some. Pure.
class StepQueue {
 public:
  /// Steps [first, end). At most `most_out` are out at a time.
  StepQueue(uint64_t first, uint64_t end, uint64_t most_out);

  /// The next step for `worker`, which has none; nothing while it has to wait, or when all is over.
  std::optional<uint64_t> Take(int worker);
  /// Its step is done.
  void Done(int worker);
  /// It will not do its step, which is returned: it is the next one to be handed out.
  std::optional<uint64_t> Lose(int worker);

  /// No step is left, and none is out.
  bool over() const { return next_ >= end_ && again_.empty() && out_.empty(); }
  /// How many are done, those before `first` included.
  uint64_t done() const { return done_; }
  /// How many were handed out more than once.
  uint64_t repeated() const { return repeated_; }

 private:
  uint64_t next_, end_, most_out_, done_;
  uint64_t repeated_ = 0;
  std::deque<uint64_t> again_;
  std::map<int, uint64_t> out_;  // by worker
};

/// Counts the updates of a server's variables, and decides when a gradient may be the next one. The
/// staleness of a gradient is the number of updates between the values that it was computed from
/// and those that it is applied to (Q. Ho et al., "More effective distributed ML via a stale
/// synchronous parallel parameter server", NIPS 2013, bound the clocks of workers; this bounds what
/// their gradients meet).
///
/// With a bound, every gradient that is being computed has a deadline: the version that it was
/// computed from, plus the bound. An update may go first if all others can still keep theirs, one
/// after the other. The one with the earliest deadline always may, so nobody waits for ever; at
/// most bound + 1 gradients may be computed at a time (StepQueue sees to that).
///
/// Pure: it knows no time, no sockets and no threads.
class StalenessGate {
 public:
  explicit StalenessGate(std::optional<uint64_t> bound = std::nullopt) : bound_(bound) {}

  /// `worker` computes a gradient from the values as they are now.
  void Begin(int worker) { begun_[worker] = version_; }
  /// Whether its gradient may be applied now.
  bool MayApply(int worker) const;
  /// It is; returns its staleness.
  uint64_t Apply(int worker);
  /// It will not come.
  void Forget(int worker) { begun_.erase(worker); }

  /// Updates so far.
  uint64_t version() const { return version_; }
  /// By staleness: how many updates had it.
  const std::vector<uint64_t>& histogram() const { return histogram_; }

 private:
  std::optional<uint64_t> bound_;
  uint64_t version_ = 0;
  std::map<int, uint64_t> begun_;  // version, by worker
  std::vector<uint64_t> histogram_;
};

}  // namespace dtrun::runtime

#endif  // DTRUN_RUNTIME_PARAMETER_SERVER_SERVER_PLAN_H_
