#ifndef DTRUN_OPS_HIERARCHICAL_HIERARCHICAL_GROUP_H_
#define DTRUN_OPS_HIERARCHICAL_HIERARCHICAL_GROUP_H_

#include <algorithm>
#include <cstdint>
#include <exception>
#include <memory>
#include <vector>

#include "ops/collective/host_map.h"
#include "ops/communicator/communicator_base.h"
#include "ops/engine/progress_engine.h"

namespace dtrun::ops::hierarchical {

class Exchange;

/// The queue of a communicator on which operations start their parts one after the other, in the
/// same order on all ranks. An operation that takes a place must pass it on, even if it starts no
/// part.
class Lane {
 public:
  /// Takes `count` places in the queue. Returns the number of the first place.
  uint64_t Take(uint64_t count = 1) {
    taken_ += count;
    return taken_ - count;
  }
  bool IsTurnOf(uint64_t place) const { return served_ == place; }
  void Pass() { ++served_; }

 private:
  uint64_t taken_ = 0, served_ = 0;
};

/// Memory for chunks between two of their steps. Returned memory is used again, because the kernel
/// would have to zero fresh memory each time.
class StagingPool {
 public:
  /// Returns at least `bytes` of memory. The memory returns to the pool when its last owner is
  /// gone. The pool outlives all owners.
  std::shared_ptr<char> Take(uint64_t bytes);

 private:
  struct Block {
    std::unique_ptr<char[]> data;
    uint64_t bytes = 0;
  };
  std::vector<Block> free_;
};

/// The state that the operations of one hierarchical communicator share on this rank. It lives as
/// long as the communicator or any of its operations. Operations use the communicators and lanes
/// while they are advanced, under the engine's lock. The communicator's own thread also uses
/// `local` and `flat`, while no operation is under way.
struct Group {
  Group(HostMap map, Engine& the_engine) : hosts(std::move(map)), engine(the_engine) {}

  std::shared_ptr<const Members> members;
  HostMap hosts;
  int rank = 0, host = 0, local_rank = 0;
  Route route;
  Engine& engine;

  std::unique_ptr<Communicator> local;    ///< this host's ranks: chunks on their way up, memory
  std::unique_ptr<Communicator> down;     ///< this host's ranks: chunks on their way down
  std::unique_ptr<Communicator> calls;    ///< this host's ranks: exchange of the calls
  std::unique_ptr<Communicator> leaders;  ///< the first rank of each host; null on other ranks
  std::unique_ptr<Communicator> rail;     ///< one rank of each host; null on ranks without a rail
  std::shared_ptr<Communicator> flat;     ///< all ranks

  StagingPool staging;
  Lane calls_lane, up_lane, across_lane, down_lane, flat_lane;
  uint64_t started = 0;                ///< collectives; counted by the communicator's thread
  const Exchange* exchange = nullptr;  ///< under way; there is one exchange at a time
  std::exception_ptr broken;  ///< the error that ended an operation midway: later ones fail too

  int local_size() const { return hosts.local_size(host); }
  int rails() const { return hosts.rails(); }
  bool on_rail() const { return local_rank < hosts.rails(); }
  bool leads() const { return local_rank == 0; }
  /// The rank here of a rank of the job; -1: it is not a member.
  int RankOf(int job_rank) const {
    const std::vector<int>& all = members->world_ranks;
    const auto found = std::find(all.begin(), all.end(), job_rank);
    return found == all.end() ? -1 : static_cast<int>(found - all.begin());
  }
  bool on_this_host(int other) const { return hosts.host(other) == host; }
};

/// Memory for a part of a chunk between two of its steps.
class Staging {
 public:
  Staging() = default;
  Staging(Group& group, uint64_t count, DType dtype);

  const Buffer& buffer() const { return buffer_; }

 private:
  std::shared_ptr<char> memory_;  // returns to the group's pool
  Buffer buffer_;
};

/// f32 numbers in 16 bits, as they cross a compressed wire.
class WireBuffer {
 public:
  WireBuffer() = default;
  /// Rounds `values` to the group's wire dtype.
  WireBuffer(Group& group, const Buffer& values);

  bool used() const { return staging_.buffer().count > 0; }
  const Buffer& buffer() const { return buffer_; }
  WireBuffer Slice(const Range& range) const;
  /// Does nothing if `used()` is false.
  void WidenInto(const Buffer& values) const;

 private:
  Staging staging_;
  Buffer buffer_;
};

}  // namespace dtrun::ops::hierarchical

#endif  // DTRUN_OPS_HIERARCHICAL_HIERARCHICAL_GROUP_H_
