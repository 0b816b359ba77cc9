// Batches take turns in two slots, each with pinned memory of the host and memory of the device:
//
//   the thread          gather s+1 -> pinned      gather s+2 -> pinned
//   the copies' stream                  copy s+1             copy s+2
//   the steps' stream   step s                    step s+1
//
// The pinned half of a slot is free again when it has been copied, for which the thread waits; the
// device's half when the step that read it is done, for which the copy waits, on the device. A step
// waits on the device for its copy. On the host, who takes a batch waits until its copy has been
// enqueued: so the host is at most two steps ahead.

#include <pthread.h>
#include <signal.h>

#include <condition_variable>
#include <cstddef>
#include <cstring>
#include <exception>
#include <mutex>
#include <numeric>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "gpu/memory.h"
#include "models/gpu/image_feed.h"

namespace dtrun::models {
namespace {

struct Slot {
  Slot(const gpu::Device& device, uint64_t bytes)
      : here(device, bytes), there(device, bytes), copied(device), used(device) {}

  gpu::PinnedMemory here;   // (rows, pixels) images, then (rows) labels
  gpu::DeviceMemory there;  // the same
  gpu::Event copied, used;
};

class StreamedFeed : public ImageFeed {
 public:
  StreamedFeed(const gpu::Stream& stream, const ByteImages& data, uint64_t rows)
      : ImageFeed(data.count, data.pixels),
        stream_(stream),
        copies_(stream.device()),
        data_(data),
        rows_(rows),
        order_(data.count),
        slots_{{stream.device(), Bytes()}, {stream.device(), Bytes()}} {
    std::iota(order_.begin(), order_.end(), 0u);
    // Signals are left to the program's own threads.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    thread_ = std::thread([this] { FillSlots(); });
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  ~StreamedFeed() override {
    {
      std::lock_guard lock(mutex_);
      ends_ = true;
      changed_.notify_all();
    }
    thread_.join();
    try {
      copies_.Synchronize();
    } catch (const std::exception&) {
      // Whoever reads results has heard of it.
    }
  }

  void SetOrder(std::span<const uint32_t> order) override {
    Settle();
    expected_.reset();
    order_.assign(order.begin(), order.end());
  }

  DeviceBatch Take(const BatchRange& range) override {
    Settle();
    if (expected_ != range) {
      Fill(range);
      Settle();
    }
    expected_.reset();
    if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
    taken_ = next_;
    next_ = 1 - next_;
    const Slot& slot = slots_[taken_];
    slot.copied.Delay(stream_.get());
    const auto* images = slot.there.as<const uint8_t>();
    return {images, images + rows_ * pixels(), nullptr};
  }

  void Used() override { slots_[taken_].used.Record(stream_.get()); }

  void Expect(const BatchRange& range) override {
    Settle();
    if (expected_ != range) Fill(range);
  }

  bool streams() const override { return true; }

 private:
  uint64_t Bytes() const { return rows_ * (pixels() + 1); }

  // Tells the thread to fill the next slot.
  void Fill(const BatchRange& range) {
    expected_ = range;
    std::lock_guard lock(mutex_);
    wanted_ = range;
    changed_.notify_all();
  }

  // Until the thread has nothing to do.
  void Settle() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !wanted_; });
  }

  void FillSlots() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return ends_ || wanted_; });
      if (ends_) return;
      const BatchRange range = *wanted_;
      lock.unlock();
      try {
        FillSlot(slots_[next_], range);
      } catch (...) {
        failure_ = std::current_exception();
      }
      lock.lock();
      wanted_.reset();
      changed_.notify_all();
    }
  }

  void FillSlot(Slot& slot, const BatchRange& range) {
    const gpu::DeviceScope scope(stream_.device());
    slot.copied.Synchronize();
    auto* images = slot.here.as<uint8_t>();
    uint8_t* labels = images + rows_ * pixels();
    for (uint64_t i = 0; i < range.examples; ++i) {
      const uint64_t example = order_[range.first + i];
      std::memcpy(images + i * pixels(), data_.images + example * pixels(), pixels());
      labels[i] = data_.labels[example];
    }
    slot.used.Delay(copies_.get());
    const uint64_t behind = rows_ * pixels();
    gpu::CopyToDevice(slot.there.address(), images, range.examples * pixels(), copies_.get());
    gpu::CopyToDevice(slot.there.address() + behind, labels, range.examples, copies_.get());
    slot.copied.Record(copies_.get());
  }

  const gpu::Stream& stream_;
  gpu::Stream copies_;
  const ByteImages data_;
  const uint64_t rows_;

  // The caller's, and the thread's while a batch is wanted.
  std::vector<uint32_t> order_;
  Slot slots_[2];
  size_t next_ = 0;  // the slot that the next batch is taken from
  size_t taken_ = 0;
  std::exception_ptr failure_;          // of the batch that was expected
  std::optional<BatchRange> expected_;  // what the next slot has been filled with

  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<BatchRange> wanted_;  // what the thread fills the next slot with now
  bool ends_ = false;
  std::thread thread_;
};

}  // namespace

uint64_t StreamedBytes(uint64_t rows, uint64_t pixels) { return 2 * rows * (pixels + 1); }

std::unique_ptr<ImageFeed> MakeStreamedFeed(
    const gpu::Stream& stream, const ByteImages& data, uint64_t rows) {
  return std::make_unique<StreamedFeed>(stream, data, rows);
}

}  // namespace dtrun::models
