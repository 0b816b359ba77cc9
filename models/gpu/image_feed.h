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

/// Where the examples of a batch lie on the device: `order` says which images, or is null: as they
/// lie there.
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

/// A data set from which batches are taken, one after the other, by work of one stream. One thread
/// at a time.
class ImageFeed {
 public:
  virtual ~ImageFeed() = default;

  uint64_t count() const { return count_; }
  uint64_t pixels() const { return pixels_; }

  /// Indices of examples, `count()` at most; the data's own order until then. Waits.
  virtual void SetOrder(std::span<const uint32_t> order) = 0;
  /// Work that is enqueued from now on, until Used, may read the batch.
  virtual DeviceBatch Take(const BatchRange& range) = 0;
  virtual void Used() = 0;
  /// The batch that is taken next is likely to be this one. Does not wait.
  virtual void Expect(const BatchRange& range) = 0;
  /// Whether the data lies in host memory, which has to stay as long as this object.
  virtual bool streams() const = 0;

 protected:
  ImageFeed(uint64_t count, uint64_t pixels) : count_(count), pixels_(pixels) {}

 private:
  uint64_t count_, pixels_;
};

/// All of it in the device's memory. Throws Error kUnavailable without room.
std::unique_ptr<ImageFeed> MakeResidentFeed(const gpu::Stream& stream, const ByteImages& data);
uint64_t ResidentBytes(uint64_t count, uint64_t pixels);

/// In host memory: two batches of `rows` at most are in the device's, and two more in pinned memory
/// on their way there. A thread gathers the batch that is expected next while the one before it is
/// used, and a stream of its own copies it. Throws Error kUnavailable without room for that.
std::unique_ptr<ImageFeed> MakeStreamedFeed(
    const gpu::Stream& stream, const ByteImages& data, uint64_t rows);
/// Of the device, and as much pinned memory.
uint64_t StreamedBytes(uint64_t rows, uint64_t pixels);

/// Throws Error kUnavailable where the network of these rows does not fit into what is free, with
/// the bytes needed and free.
void CheckRoom(const gpu::Device& device, const NetworkPlan& plan, const GpuOptions& options);

/// Whether a data set of so many examples is to lie in the device's memory as a whole: it does if
/// it fits into what is left to this rank, and `options` leave it open. `later`: bytes that are
/// still needed besides.
bool IsResident(
    const gpu::Device& device, const GpuOptions& options, uint64_t count, uint64_t pixels,
    uint64_t later);

}  // namespace dtrun::models

#endif  // DTRUN_MODELS_GPU_IMAGE_FEED_H_
