#include "runtime/device/device_gradients.h"

#include <map>
#include <mutex>

#include "gpu/driver.h"
#include "gpu/gpu_device.h"
#include "gpu/stream.h"

namespace dtrun::runtime {
namespace {

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
