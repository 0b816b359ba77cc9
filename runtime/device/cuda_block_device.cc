// A GPU as a BlockDevice: a kernel writes the sum of each chunk of a buffer, and the host adds the
// chunks of a buffer in their order. Events order the trainer's stream and the stream of the
// reductions.

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "gpu/driver.h"
#include "gpu/gpu_device.h"
#include "gpu/memory.h"
#include "gpu/stream.h"
#include "runtime/device/block_args.h"
#include "runtime/device/block_device.h"

extern "C" const unsigned long long dtrun_block_kernels[];

namespace dtrun::runtime {
namespace {

uint64_t ChunksOf(const Buffer& buffer) { return (buffer.count + kSumChunk - 1) / kSumChunk; }

CUstream StreamOf(const Buffer& buffer) { return static_cast<CUstream>(buffer.stream); }

// Memory for sums, which is kept for the next call: to free memory of a GPU is to wait for its
// kernels.
class Scratch {
 public:
  gpu::DeviceMemory Take(const gpu::Device& device, uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    for (gpu::DeviceMemory& memory : free_)
      if (memory.bytes() >= bytes) return std::exchange(memory, {});
    return gpu::DeviceMemory(device, std::max<uint64_t>(bytes, 64 << 10));
  }
  void Give(gpu::DeviceMemory memory) {
    const std::lock_guard lock(mutex_);
    for (gpu::DeviceMemory& place : free_)
      if (!place) return std::swap(place, memory);
    free_.push_back(std::move(memory));
  }

 private:
  std::mutex mutex_;
  std::vector<gpu::DeviceMemory> free_;
};

// A namespace's, not a function's, so that gpu::Kernels::LoadAll knows them before their first use.
gpu::Kernels& block_kernels = *new gpu::Kernels(dtrun_block_kernels, "block_kernels");

class GpuBlockDevice : public BlockDevice {
 public:
  explicit GpuBlockDevice(const gpu::Device& device) : device_(device) {
    gpu::Kernels::LoadAll(device);
  }

  void Copy(const Buffer& from, const Buffer& to) override {
    if (from.count == 0) return;
    const gpu::DeviceScope scope(device_);
    const CUstream stream = StreamOf(to.device < 0 ? from : to);
    gpu::Copy(from, to, stream);
    if (from.device < 0 || to.device < 0) Wait(stream);
  }

  void Clear(const Buffer& buffer) override {
    if (buffer.count == 0) return;
    const gpu::DeviceScope scope(device_);
    gpu::Fill(gpu::AddressOf(buffer.data), 0, buffer.bytes(), StreamOf(buffer));
  }

  void Multiply(const Buffer& buffer, double factor) override {
    const std::string kernel = std::string("dtrun_block_multiply_") + NameOf(buffer.dtype);
    block_kernels.Launch(
        device_, kernel.c_str(), {gpu::BlocksFor(buffer.count, 256, 1024), 256}, StreamOf(buffer),
        BlockMultiplyArgs{buffer.data, buffer.count, factor});
  }

  std::vector<double> SquaredNorms(const std::vector<Buffer>& buffers) override {
    return Sums(buffers, [](const Buffer& buffer) {
      return std::string("dtrun_block_squares_") + NameOf(buffer.dtype);
    });
  }

  std::optional<size_t> FindNonFinite(const std::vector<Buffer>& buffers) override {
    std::vector<Buffer> floats;
    std::vector<size_t> index;
    for (size_t i = 0; i < buffers.size(); ++i) {
      if (ExponentOf(buffers[i].dtype) == 0) continue;
      floats.push_back(buffers[i]);
      index.push_back(i);
    }
    const std::vector<double> counts = Sums(floats, [](const Buffer& buffer) {
      return "dtrun_block_non_finite_" + std::to_string(8 * SizeOf(buffer.dtype));
    });
    const auto found = std::find_if(counts.begin(), counts.end(), [](double n) { return n > 0; });
    if (found == counts.end()) return std::nullopt;
    return index[static_cast<size_t>(found - counts.begin())];
  }

 private:
  static void Wait(CUstream stream) {
    gpu::Check(gpu::Driver::Get().cuStreamSynchronize(stream), "waiting for a stream");
  }

  // By buffer: the sum of what `kernel_of(buffer)` computes for its chunks.
  template <typename KernelOf>
  std::vector<double> Sums(const std::vector<Buffer>& buffers, const KernelOf& kernel_of) {
    uint64_t chunks = 0;
    for (const Buffer& buffer : buffers) chunks += ChunksOf(buffer);
    std::vector<double> sums(buffers.size()), of_chunks(chunks);
    if (chunks == 0) return sums;
    const CUstream stream = StreamOf(buffers[0]);
    gpu::DeviceMemory memory = scratch_.Take(device_, chunks * sizeof(double));
    double* next = memory.as<double>();
    for (const Buffer& buffer : buffers) {
      block_kernels.Launch(
          device_, kernel_of(buffer).c_str(),
          {gpu::BlocksFor(ChunksOf(buffer) * kSumParts, 256), 256}, stream,
          BlockSumArgs{buffer.data, buffer.count, next, ExponentOf(buffer.dtype)});
      next += ChunksOf(buffer);
    }
    const gpu::DeviceScope scope(device_);
    gpu::CopyToHost(of_chunks.data(), memory.address(), chunks * sizeof(double), stream);
    Wait(stream);
    scratch_.Give(std::move(memory));
    const double* chunk = of_chunks.data();
    for (size_t i = 0; i < buffers.size(); ++i)
      for (uint64_t k = 0; k < ChunksOf(buffers[i]); ++k) sums[i] += *chunk++;
    return sums;
  }

  const gpu::Device& device_;
  Scratch scratch_;
};

class GpuGradients : public DeviceGradients {
 public:
  GpuGradients(const gpu::Device& device, void* trainer_stream)
      : device_(device),
        trainer_(static_cast<CUstream>(trainer_stream)),
        reductions_(device, gpu::Priority::kHigh),
        begin_(device),
        end_(device) {}

  void* trainer_stream() const override { return trainer_; }
  void* reduction_stream() const override { return reductions_.get(); }

  void BeginReduction() override {
    begin_.Record(trainer_);
    begin_.Delay(reductions_.get());
  }
  void EndReductions() override {
    end_.Record(reductions_.get());
    end_.Delay(trainer_);
  }
  void Synchronize() override {
    reductions_.Synchronize();
    const gpu::DeviceScope scope(device_);
    gpu::Check(
        gpu::Driver::Get().cuStreamSynchronize(trainer_), "waiting for the trainer's stream");
  }

 private:
  const gpu::Device& device_;
  CUstream trainer_;
  gpu::Stream reductions_;
  gpu::Event begin_, end_;
};

}  // namespace

// The devices stay until the process ends, because the driver may end first.
BlockDevice& CudaBlockDevice(int index) {
  static std::mutex mutex;
  static auto* const devices = new std::map<int, std::unique_ptr<BlockDevice>>;
  const std::lock_guard lock(mutex);
  std::unique_ptr<BlockDevice>& device = (*devices)[index];
  if (device == nullptr) device = std::make_unique<GpuBlockDevice>(gpu::Device::Get(index));
  return *device;
}

std::unique_ptr<DeviceGradients> MakeDeviceGradients(int device, void* trainer_stream) {
  return std::make_unique<GpuGradients>(gpu::Device::Get(device), trainer_stream);
}

int CudaDeviceCount() { return gpu::DeviceCount(); }

const CudaDevice& DescribeCudaDevice(int index) {
  static std::mutex mutex;
  static auto* const known = new std::map<int, CudaDevice>;
  const std::lock_guard lock(mutex);
  const auto found = known->find(index);
  if (found != known->end()) return found->second;
  const gpu::Description described = gpu::Describe(index);
  return known->emplace(index, CudaDevice{described.name, described.bus_id, described.memory_bytes})
      .first->second;
}

}  // namespace dtrun::runtime
