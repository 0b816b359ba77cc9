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

/// Collectives over GPU memory for the ranks of one communicator: the interface of a GPU backend.
/// Each rank has one GPU. All ranks make the same calls in the same order. Not thread-safe, like
/// Communicator.
///
/// A collective is enqueued into the stream of its buffers. The host does not wait. Later work in
/// the same stream sees the result. Collectives of one group run in the order in which they were
/// enqueued, also from different streams.
///
/// If ranks have called different things, or if a rank does not come in time, no rank does anything
/// more and the group is unusable. The next call, or `Check`, throws the error.
class DeviceGroup {
 public:
  virtual ~DeviceGroup() = default;
  /// The name of the backend, for example "cuda_ipc".
  virtual const char* backend() const = 0;
  /// The GPU of this rank.
  virtual int device() const = 0;

  /// Enqueues a collective. Its arguments have been checked, and its buffers lie on this GPU.
  /// Throws Error kUnavailable, before anything is enqueued, if the backend cannot do the call: its
  /// stream is being captured into a graph, for example. Throws kMismatch, kTimeout or kPeerLost if
  /// an earlier call has failed.
  virtual void Enqueue(const Collective& collective) = 0;

  /// Throws the error of any enqueued collective, as far as this rank knows. After the caller has
  /// waited for its streams, this rank knows all errors. Check itself does not wait.
  virtual void Check() = 0;

  /// Collective: zeroed memory on this GPU, aligned to 256 bytes. If the backend can, the other
  /// ranks reach it without a copy. `bytes` may differ between ranks.
  virtual std::unique_ptr<Memory> Allocate(uint64_t bytes) = 0;

  /// Collective: makes the program's own memory on this GPU equal to memory from Allocate, if the
  /// backend makes a difference. `bytes` may differ between ranks, and may be 0. The memory stays
  /// the program's. All ranks destroy the result between the same two calls. The program may free
  /// the memory when all ranks have done so. Throws Error kInvalidArgument, on all ranks, if the
  /// memory does not lie on the GPU or not in one allocation.
  struct Registration {
    std::unique_ptr<Memory> memory;
    /// The reason, with the rank, why the ranks do not reach the memory. "" if they reach it. The
    /// same on all ranks. Memory with an obstacle is used like any other memory.
    std::string obstacle;
  };
  virtual Registration Register(void* data, uint64_t bytes);
};

/// Makes the group of the ranks of `host`, with the first backend that all ranks can use. This rank
/// uses GPU `device`. Collective over `host`, which must live until the group's destructor begins.
/// Throws Error, on all ranks, if there is no backend: kUnavailable with the reason of each
/// backend.
using DeviceGroupFactory =
    std::function<std::unique_ptr<DeviceGroup>(Communicator& host, int device)>;

}  // namespace dtrun::ops

#endif
