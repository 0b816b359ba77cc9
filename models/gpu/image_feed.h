#ifndef DTRUN_MODELS_GPU_IMAGE_FEED_H_
#define DTRUN_MODELS_GPU_IMAGE_FEED_H_

#include <cstdint>
#include <memory>
#include <span>

#include "gpu/gpu_device.h"
#include "gpu/stream.h"
#include "models/gpu/gpu_replica.h"
#include "models/gpu/network_plan.h"

namespace dtrun::models {

/// The examples of a batch in device memory. Example i is image `order[i]`, or image i if `order`
/// is null.
struct DeviceBatch {
  const uint8_t* images = nullptr;  // (all, pixels)
  const uint8_t* labels = nullptr;  // (all)
  const uint32_t* order = nullptr;  // (examples)
};

/// Examples [first, first + examples) of the order.
struct BatchRange {
  uint64_t first = 0, examples = 0;
  bool operator==(const BatchRange&) const = default;
};

/// A data set that gives batches to the work of one stream, one after the other. One thread at a
/// time.
class ImageFeed {
 public:
  virtual ~ImageFeed() = default;

  uint64_t count() const { return count_; }
  uint64_t pixels() const { return pixels_; }

  /// Sets the order of examples: at most `count()` indices. The first order is the order of the
  /// data. Waits until the new order is set.
  virtual void SetOrder(std::span<const uint32_t> order) = 0;
  /// Returns a batch. Work that is enqueued between Take and Used may read the batch.
  virtual DeviceBatch Take(const BatchRange& range) = 0;
  virtual void Used() = 0;
  /// Names the batch that the next Take is likely to request. Does not wait.
  virtual void Expect(const BatchRange& range) = 0;
  /// Whether the data lies in host memory. That memory must stay as long as this object.
  virtual bool streams() const = 0;

 protected:
  ImageFeed(uint64_t count, uint64_t pixels) : count_(count), pixels_(pixels) {}

 private:
  uint64_t count_, pixels_;
};

/// A feed with the whole data set in device memory. Throws Error kUnavailable if there is no room.
std::unique_ptr<ImageFeed> MakeResidentFeed(const gpu::Stream& stream, const ByteImages& data);
uint64_t ResidentBytes(uint64_t count, uint64_t pixels);

/// A feed with the data set in host memory. Two batches of at most `rows` examples are in device
/// memory, and two more are in pinned memory on their way to the device. A thread gathers the
/// expected batch while the batch before it is used. A separate stream copies the batch. Throws
/// Error kUnavailable if there is no room for the batches.
std::unique_ptr<ImageFeed> MakeStreamedFeed(
    const gpu::Stream& stream, const ByteImages& data, uint64_t rows);
/// Bytes of device memory. The feed takes as much pinned memory.
uint64_t StreamedBytes(uint64_t rows, uint64_t pixels);

/// Throws Error kUnavailable if the network with `options.rows` rows does not fit into free device
/// memory. The message has the needed and the free bytes.
void CheckRoom(const gpu::Device& device, const NetworkPlan& plan, const GpuOptions& options);

/// Whether a data set of `count` examples lies in device memory as a whole. With GpuData::kAuto, it
/// does if it fits into the rest of this rank's part of the memory. `later` is the number of bytes
/// that are needed afterwards.
bool IsResident(
    const gpu::Device& device, const GpuOptions& options, uint64_t count, uint64_t pixels,
    uint64_t later);

}  // namespace dtrun::models

#endif  // DTRUN_MODELS_GPU_IMAGE_FEED_H_
