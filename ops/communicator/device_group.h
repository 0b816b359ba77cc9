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
/// A collective is enqueued into the stream of its buffers. The host does not wait for the GPU,
/// except with host_staged; with hierarchical it waits until all ranks have made the call. Later
/// work in the same stream sees the result. Collectives of one group run in the order in which they
/// were enqueued, also from different streams.
///
/// If ranks have called different things, or if a rank does not come in time, no rank does anything
/// more. The call itself throws the error, or the next call, or `Check`.
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
  /// this call or an earlier call has failed.
  virtual void Enqueue(const Collective& collective) = 0;

  /// Throws the error of any enqueued collective, as far as this rank knows. After the caller has
  /// waited for its streams, this rank knows all errors. Check itself does not wait.
  virtual void Check() = 0;

  /// Collective: zeroed memory on this GPU, aligned to 256 bytes. `bytes` may differ between ranks.
  virtual std::unique_ptr<Memory> Allocate(uint64_t bytes) = 0;
};

/// Makes the group of the ranks of `host`, with the first backend that all ranks can use. This rank
/// uses GPU `device`. Collective over `host`, which must live until the group's destructor begins.
/// Throws Error, on all ranks, if there is no backend: kUnavailable with the reason of each
/// backend.
using DeviceGroupFactory =
    std::function<std::unique_ptr<DeviceGroup>(Communicator& host, int device)>;

}  // namespace dtrun::ops

#endif
