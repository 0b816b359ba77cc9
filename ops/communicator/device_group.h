#ifndef DTRUN_OPS_COMMUNICATOR_DEVICE_GROUP_H_
#define DTRUN_OPS_COMMUNICATOR_DEVICE_GROUP_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "ops/collective/collective.h"

namespace dtrun::ops {

class Communicator;
class Memory;

/// Collectives over memory of GPUs, for the ranks of one communicator, each with one GPU: what a
/// backend of GPUs is. The ranks call the same, in the same order. Not thread-safe, as a
/// communicator is not.
///
/// A collective is enqueued into the stream of its buffers. The host waits for nobody; what is
/// enqueued into that stream afterwards sees the result. Collectives of one group are done in the
/// order in which they were enqueued, also from different streams.
///
/// When ranks have called different things, or one of them does not come in time, nothing more is
/// done on any of them, and the group has come to its end: the next call, or `Check`, throws the
/// error.
class DeviceGroup {
 public:
  virtual ~DeviceGroup() = default;
  /// "cuda_ipc" and so on.
  virtual const char* backend() const = 0;
  /// The GPU of this rank.
  virtual int device() const = 0;

  /// Enqueues it. `collective` has been checked, and its buffers lie on this GPU. Throws Error
  /// kUnavailable, before anything is enqueued, for what the backend cannot do (its stream is being
  /// captured into a graph, say); kMismatch, kTimeout or kPeerLost when something enqueued before
  /// has failed.
  virtual void Enqueue(const Collective& collective) = 0;

  /// Throws the error of anything that has been enqueued, as far as it is known: of all of it once
  /// the caller has waited for its streams. Waits for nothing.
  virtual void Check() = 0;

  /// Collective: zeroed memory on this GPU, aligned to 256 bytes, which the other ranks reach
  /// without a copy where the backend can. `bytes` may differ between ranks.
  virtual std::unique_ptr<Memory> Allocate(uint64_t bytes) = 0;

  /// Collective: memory on this GPU that the program has allocated by itself becomes such memory,
  /// where the backend makes a difference. `bytes` may differ between ranks, and be 0. The memory
  /// stays the program's. All ranks destroy the result between the same two calls; the memory may
  /// be freed when all have. Throws Error kInvalidArgument, on all ranks, when it does not lie on
  /// the GPU, or not in one allocation.
  struct Registration {
    std::unique_ptr<Memory> memory;
    /// Why the ranks do not reach it, which is then no difference from other memory: with the rank,
    /// the same on all ranks. "" when they do.
    std::string obstacle;
  };
  virtual Registration Register(void* data, uint64_t bytes);
};

/// Makes the group of a communicator's ranks, this one on GPU `device`, by the first backend that
/// all of them can use. Collective over `host`, which outlives the group but for its destructor.
/// Throws Error, on all ranks, when there is none: kUnavailable with the reason of each.
using DeviceGroupFactory =
    std::function<std::unique_ptr<DeviceGroup>(Communicator& host, int device)>;

}  // namespace dtrun::ops

#endif
