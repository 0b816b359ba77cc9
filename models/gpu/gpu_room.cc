#include "models/gpu/gpu_room.h"

#include <dtrun/error.h>

#include <algorithm>

#include "gpu/memory.h"
#include "models/gpu/device_network.h"
#include "models/gpu/image_feed.h"
#include "models/text.h"

namespace dtrun::models {
namespace {

// A replica's part that is taken at once, besides the data.
uint64_t BytesFor(
    const gpu::Device& device, const NetworkPlan& plan, const GpuOptions& options, uint64_t rows) {
  return plan.Bytes(rows, SizeOf(options.dtype)) + DeviceNetwork::PartialBytes(device, plan, rows) +
         options.workspace_bytes;
}

// Of a data set, when a step has so many rows: all of it, or the batches on their way.
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

// What libraries and kernels may take of a device for themselves is left free.
uint64_t Reserve(const gpu::Device::MemoryInfo& memory) {
  return std::min<uint64_t>(memory.total / 32, 1 << 30);
}

uint64_t RoomOn(const gpu::Device& device, const GpuOptions& options, int sharers) {
  const gpu::Device::MemoryInfo memory = device.Memory();
  const uint64_t room = Less(memory.free, Reserve(memory)) / static_cast<uint64_t>(sharers);
  return options.memory_bytes == 0 ? room : std::min(room, options.memory_bytes);
}

// cuDNN's tensors have fewer than 2^31 elements.
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

// An equal part of the device for each rank that shares it, whoever of them comes first.
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
