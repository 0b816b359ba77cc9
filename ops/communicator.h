#ifndef DTRUN_OPS_COMMUNICATOR_H_
#define DTRUN_OPS_COMMUNICATOR_H_

#include <cstdint>
#include <memory>
#include <string>

#include "dtrun/types.h"
#include "ops/engine.h"

namespace dtrun::ops {

enum class CollectiveKind : uint8_t { kAllReduce, kBroadcast, kAllGather, kBarrier };

/// "all_reduce" and so on.
const char* NameOf(CollectiveKind kind);

/// One collective as its caller asked for it, checked.
struct Collective {
  CollectiveKind kind;
  Buffer input;   ///< what this rank brings; all_reduce and broadcast work in place on it
  Buffer output;  ///< of all_gather: size * input.count elements
  ReduceOp op = ReduceOp::kSum;
  int root = 0;
};

/// "all_reduce (f32, 4 elements, sum)"
std::string Describe(const Collective& collective);

/// Memory that collectives can reach without a copy; freed with the object, on this rank alone.
class Memory {
 public:
  Memory(void* data, uint64_t bytes) : data_(data), bytes_(bytes) {}
  virtual ~Memory() = default;
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  void* data() const { return data_; }
  uint64_t bytes() const { return bytes_; }

 private:
  void* data_;
  uint64_t bytes_;
};

/// A fixed set of ranks that exchange data. Collectives are started by every rank, in the same
/// order; what they do stands in <dtrun/communicator.h>. Not thread-safe: one thread at a time per
/// Communicator; `Duplicate()` gives another one. After kPeerLost or kTimeout it is unusable;
/// destroy it. Started operations may outlive it.
class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual const char* backend() const = 0;

  /// Each checks its arguments, throws Error kInvalidArgument or kUnavailable before anything is
  /// sent, and starts.
  Work StartAllReduce(Buffer buffer, ReduceOp op);
  Work StartBroadcast(Buffer buffer, int root);
  Work StartAllGather(Buffer input, Buffer output);
  Work StartBarrier();

  void AllReduce(Buffer buffer, ReduceOp op) { StartAllReduce(buffer, op).Wait(); }
  void Broadcast(Buffer buffer, int root) { StartBroadcast(buffer, root).Wait(); }
  void AllGather(Buffer input, Buffer output) { StartAllGather(input, output).Wait(); }
  void Barrier() { StartBarrier().Wait(); }

  /// Collective: zeroed, page-aligned memory, reduced in place without a copy where the backend
  /// can.
  virtual std::unique_ptr<Memory> Allocate(uint64_t bytes) = 0;
  /// Collective: the same ranks, with operations of its own.
  virtual std::unique_ptr<Communicator> Duplicate() = 0;

 protected:
  /// `collective` has been checked.
  virtual Work Start(const Collective& collective) = 0;
};

/// Zeroed, page-aligned memory of this process alone.
std::unique_ptr<Memory> AllocatePrivate(uint64_t bytes);

}  // namespace dtrun::ops

#endif
