#include "models/gpu/image_feed.h"

#include <dtrun/error.h>
#include <pthread.h>
#include <signal.h>

#include <algorithm>
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
#include "models/gpu/device_network.h"
#include "models/message_text.h"

namespace dtrun::models {
namespace {

class ResidentFeed : public ImageFeed {
 public:
  ResidentFeed(const gpu::Stream& stream, const ByteImages& data)
      : ImageFeed(data.count, data.pixels),
        stream_(stream),
        images_(stream.device(), data.count * data.pixels),
        labels_(stream.device(), data.count),
        order_(stream.device(), data.count * sizeof(uint32_t)) {
    WriteBytes(stream_, images_, 0, data.images, data.count * data.pixels);
    WriteBytes(stream_, labels_, 0, data.labels, data.count);
    std::vector<uint32_t> own(data.count);
    std::iota(own.begin(), own.end(), 0u);
    SetOrder(own);
  }

  void SetOrder(std::span<const uint32_t> order) override {
    WriteBytes(stream_, order_, 0, order.data(), order.size_bytes());
  }
  DeviceBatch Take(const BatchRange& range) override {
    return {images_.as<uint8_t>(), labels_.as<uint8_t>(), order_.as<uint32_t>() + range.first};
  }
  void Used() override {}
  void Expect(const BatchRange&) override {}
  bool streams() const override { return false; }

 private:
  const gpu::Stream& stream_;
  gpu::DeviceMemory images_, labels_, order_;
};

}  // namespace

uint64_t ResidentBytes(uint64_t count, uint64_t pixels) {
  return count * (pixels + 1 + sizeof(uint32_t));
}

std::unique_ptr<ImageFeed> MakeResidentFeed(const gpu::Stream& stream, const ByteImages& data) {
  return std::make_unique<ResidentFeed>(stream, data);
}

// Batches use two slots by turns. Each slot has pinned memory of the host and memory of the device:
//
//   the thread          gather s+1 -> pinned      gather s+2 -> pinned
//   the copies' stream                  copy s+1             copy s+2
//   the steps' stream   step s                    step s+1
//
// The thread waits until the last copy from a slot's pinned memory is done, and then fills that
// memory again. A copy into a slot's device memory waits, on the device, until the step that read
// the memory is done. A step waits on the device for its copy. On the host, Take waits until the
// copy of its batch is enqueued. So the host is at most two steps ahead.

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
    // The thread blocks all signals, so the program's other threads handle them.
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
      // Calls that read results report this error.
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

  // Waits until the thread is idle.
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

  // The caller owns these members. While `wanted_` is set, the thread owns them.
  std::vector<uint32_t> order_;
  Slot slots_[2];
  size_t next_ = 0;  // the slot that the next batch is taken from
  size_t taken_ = 0;
  std::exception_ptr failure_;          // the error of gathering the expected batch
  std::optional<BatchRange> expected_;  // the batch that fills the next slot

  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<BatchRange> wanted_;  // the batch that the thread has to gather
  bool ends_ = false;
  std::thread thread_;
};

}  // namespace

uint64_t StreamedBytes(uint64_t rows, uint64_t pixels) { return 2 * rows * (pixels + 1); }

std::unique_ptr<ImageFeed> MakeStreamedFeed(
    const gpu::Stream& stream, const ByteImages& data, uint64_t rows) {
  return std::make_unique<StreamedFeed>(stream, data, rows);
}

namespace {

// Bytes that a replica allocates at once, without the data set.
uint64_t BytesFor(
    const gpu::Device& device, const NetworkPlan& plan, const GpuOptions& options, uint64_t rows) {
  return plan.Bytes(rows, SizeOf(options.dtype)) + DeviceNetwork::PartialBytes(device, plan, rows) +
         options.workspace_bytes;
}

// Bytes for a data set if a step has `rows` rows: for the whole data set, or for streamed batches.
uint64_t DataBytes(
    const NetworkPlan& plan, const GpuOptions& options, uint64_t count, uint64_t rows) {
  const uint64_t resident = ResidentBytes(count, plan.input.count());
  const uint64_t streamed = StreamedBytes(rows, plan.input.count());
  switch (options.data) {
    case GpuData::kResident: return resident;
    case GpuData::kStreamed: return streamed;
    case GpuData::kAuto: break;
  }
  return std::min(resident, streamed);
}

uint64_t Less(uint64_t from, uint64_t what) { return from > what ? from - what : 0; }

// Device memory that stays free for libraries and kernels.
uint64_t Reserve(const gpu::Device::MemoryInfo& memory) {
  return std::min<uint64_t>(memory.total / 32, 1 << 30);
}

uint64_t RoomOn(const gpu::Device& device, const GpuOptions& options, int sharers) {
  const gpu::Device::MemoryInfo memory = device.Memory();
  const uint64_t room = Less(memory.free, Reserve(memory)) / static_cast<uint64_t>(sharers);
  return options.memory_bytes == 0 ? room : std::min(room, options.memory_bytes);
}

// A cuDNN tensor has fewer than 2^31 elements.
uint64_t MostRows(const NetworkPlan& plan) {
  uint64_t widest = plan.input.count();
  for (const Stage& stage : plan.stages) widest = std::max(widest, stage.output.count());
  return ((uint64_t{1} << 31) - 1) / widest;
}

}  // namespace

void CheckRoom(const gpu::Device& device, const NetworkPlan& plan, const GpuOptions& options) {
  if (options.rows > MostRows(plan)) {
    throw Error(
        ErrorCode::kUnavailable,
        Text(
            "a batch of ", options.rows, " examples on a GPU: cuDNN takes ", MostRows(plan),
            " of this network at most"));
  }
  const uint64_t needed = BytesFor(device, plan, options, options.rows),
                 free = RoomOn(device, options, 1);
  if (needed <= free) return;
  throw Error(
      ErrorCode::kUnavailable,
      Text(
          "a batch of ", options.rows, " examples on GPU ", device.index(), " (", device.name(),
          ") needs ", needed, " bytes, of which ", free,
          " are free; expected a smaller batch (--batch-size auto takes the largest that fits)"));
}

// Each rank that shares the device has an equal part. The part does not depend on the order in
// which the ranks start.
bool IsResident(
    const gpu::Device& device, const GpuOptions& options, uint64_t count, uint64_t pixels,
    uint64_t later) {
  if (options.data != GpuData::kAuto) return options.data == GpuData::kResident;
  const gpu::Device::MemoryInfo memory = device.Memory();
  const uint64_t reserve = Reserve(memory), taken = gpu::MemoryTaken(device.index());
  uint64_t part = Less(memory.total, reserve) / static_cast<uint64_t>(options.sharers);
  if (options.memory_bytes != 0) part = std::min(part, options.memory_bytes);
  const uint64_t left = std::min(Less(part, taken), Less(memory.free, reserve));
  return ResidentBytes(count, pixels) + later <= left;
}

uint64_t LargestGpuBatch(
    Sequential& model, const GpuOptions& options, std::span<const uint64_t> data_sets,
    uint64_t most) {
  const NetworkPlan plan = PlanNetwork(model, options.seed);
  const gpu::Device& device = gpu::Device::Get(options.device);
  const uint64_t room = RoomOn(device, options, options.sharers);
  const auto needed = [&](uint64_t rows) {
    uint64_t bytes = BytesFor(device, plan, options, rows);
    for (const uint64_t count : data_sets) bytes += DataBytes(plan, options, count, rows);
    return bytes;
  };
  most = std::min(most, MostRows(plan));
  uint64_t largest = 0;
  for (uint64_t rows = 1; rows <= most && needed(rows) <= room; rows *= 2) largest = rows;
  if (largest > 0) return largest;
  throw Error(
      ErrorCode::kUnavailable,
      Text(
          "a batch of one example on GPU ", device.index(), " (", device.name(), ") needs ",
          needed(1), " bytes, of which ", room, " are free for this rank"));
}

}  // namespace dtrun::models
