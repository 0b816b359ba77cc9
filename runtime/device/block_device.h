#ifndef DTRUN_RUNTIME_DEVICE_BLOCK_DEVICE_H_
#define DTRUN_RUNTIME_DEVICE_BLOCK_DEVICE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dtrun/types.h"

namespace dtrun::runtime {

/// The memory of gradients and parameters: host memory, or the memory of a GPU. Code that reads or
/// changes gradients uses these functions and does not depend on the place. The results have the
/// same bits in all places. On a GPU, work is enqueued into the stream of the buffers. The host
/// waits only if it gets numbers. Thread-safe. Throws Error kSystem if the driver fails.
class BlockDevice {
 public:
  virtual ~BlockDevice() = default;

  /// Copies `from` to `to`, with the same number of bytes. One buffer lies here, and the other
  /// buffer here or in host memory. If one of them lies in host memory, the copy is complete when
  /// the call returns.
  virtual void Copy(const Buffer& from, const Buffer& to) = 0;
  virtual void Clear(const Buffer& buffer) = 0;
  /// Multiplies f32 or f64 elements by `factor`, rounded to their dtype.
  virtual void Multiply(const Buffer& buffer, double factor) = 0;
  /// Returns the sum of squares of each buffer, of f32 or f64. The sums are computed in f64 in a
  /// fixed order. All buffers have one stream.
  virtual std::vector<double> SquaredNorms(const std::vector<Buffer>& buffers) = 0;
  /// Returns the first buffer with an infinite or NaN element. Other types than floats have none.
  /// All buffers have one stream.
  virtual std::optional<size_t> FindNonFinite(const std::vector<Buffer>& buffers) = 0;
};

/// The device of `buffer`. The object stays valid. Throws Error kUnavailable if there is no such
/// GPU.
BlockDevice& BlockDeviceOf(const Buffer& buffer);

/// Built twice: from cuda_block_device.cc if the CUDA toolkit is found, otherwise from
/// no_cuda_block_device.cc.
BlockDevice& CudaBlockDevice(int index);

/// The bits that are all set if an element is infinite or NaN. 0: the dtype has no such elements.
uint64_t ExponentOf(DType dtype);

// The same for buffers in several places. Throws Error kInvalidArgument if SquaredNorms gets
// another dtype than f32 and f64.
void Copy(const Buffer& from, const Buffer& to);
std::vector<double> SquaredNorms(const std::vector<Buffer>& buffers);
std::optional<size_t> FindNonFinite(const std::vector<Buffer>& buffers);

/// The streams of one trainer's gradients on a GPU. They are copied and cleared in the trainer's
/// stream and reduced in a second stream, so that a bucket is reduced while the backward pass goes
/// on. The host waits only in Synchronize. Throws Error kSystem if the driver fails.
class DeviceGradients {
 public:
  virtual ~DeviceGradients() = default;

  /// The stream of the trainer, and the stream of the reductions.
  virtual void* trainer_stream() const = 0;
  virtual void* reduction_stream() const = 0;

  /// Reductions that start from now on run after the trainer's work so far.
  virtual void BeginReduction() = 0;
  /// Work that the trainer enqueues from now on runs after all reductions so far.
  virtual void EndReductions() = 0;
  /// Waits for all reductions, and for the trainer's work so far, which may read their results.
  virtual void Synchronize() = 0;
};

/// Built twice, like CudaBlockDevice. Throws Error kUnavailable if there are no GPUs.
std::unique_ptr<DeviceGradients> MakeDeviceGradients(int device, void* trainer_stream);

/// The number of GPUs that this process can use, at least 1. Throws Error kUnavailable, with the
/// reason, if there are none. Built twice, like CudaBlockDevice.
int CudaDeviceCount();

struct CudaDevice {
  std::string name, bus_id;
  uint64_t memory_bytes = 0;
};

/// Describes a GPU without using any of its resources. The result stays valid. Throws the errors of
/// CudaDeviceCount, and kInvalidArgument if the GPU does not exist. Any thread.
const CudaDevice& DescribeCudaDevice(int index);

}  // namespace dtrun::runtime

#endif  // DTRUN_RUNTIME_DEVICE_BLOCK_DEVICE_H_
