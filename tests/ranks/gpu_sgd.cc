// A trainer with parameters on GPUs. It broadcasts the parameters, writes gradients to GPU memory
// and steps a DistributedOptimizer. Each rank prints its parameters.

#include <dtrun/communicator.h>
#include <dtrun/context.h>
#include <dtrun/device_memory.h>
#include <dtrun/distributed_optimizer.h>
#include <dtrun/error.h>
#include <dtrun/optimizer.h>
#include <dtrun/types.h>

#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "gpu/memory.h"
#include "gpu/stream.h"

namespace {

using dtrun::Buffer;

// SGD that updates the parameters on the host.
class Sgd : public dtrun::Optimizer {
 public:
  Sgd(const dtrun::gpu::Stream& stream, const std::vector<uint64_t>& counts) : stream_(stream) {
    for (const uint64_t count : counts) {
      memory_.emplace_back(stream.device(), count * sizeof(float));
      Buffer value(memory_.back().as<void>(), count, dtrun::DType::kF32);
      value.device = stream.device().index();
      value.stream = stream.get();
      list_.push_back({"p" + std::to_string(list_.size()), value, Buffer()});
    }
  }
  std::vector<dtrun::Parameter>& parameters() override { return list_; }
  std::vector<dtrun::NamedBuffer> state() override { return {}; }
  void Step() override {
    for (const dtrun::Parameter& parameter : list_) {
      if (!parameter.has_gradient) continue;
      std::vector<float> value = Read(parameter.value), gradient = Read(parameter.gradient);
      for (size_t i = 0; i < value.size(); ++i) value[i] -= 0.5f * gradient[i];
      Write(parameter.value, value);
    }
  }

  std::vector<float> Read(const Buffer& from) const {
    std::vector<float> values(from.count);
    const dtrun::gpu::DeviceScope scope(stream_.device());
    dtrun::gpu::CopyToHost(
        values.data(), dtrun::gpu::AddressOf(from.data), from.bytes(), stream_.get());
    stream_.Synchronize();
    return values;
  }
  void Write(const Buffer& to, const std::vector<float>& values) const {
    const dtrun::gpu::DeviceScope scope(stream_.device());
    dtrun::gpu::CopyToDevice(
        dtrun::gpu::AddressOf(to.data), values.data(), to.bytes(), stream_.get());
    stream_.Synchronize();
  }

 private:
  const dtrun::gpu::Stream& stream_;
  std::vector<dtrun::gpu::DeviceMemory> memory_;
  std::vector<dtrun::Parameter> list_;
};

void Train(dtrun::Context& job) {
  const int index = job.local_rank() % dtrun::gpu::DeviceCount();
  const dtrun::gpu::Stream stream(dtrun::gpu::Device::Get(index));
  Sgd sgd(stream, {1000, 7, 300'000});
  for (const dtrun::Parameter& parameter : sgd.parameters())
    sgd.Write(parameter.value, std::vector<float>(parameter.value.count, 3 + job.rank()));
  dtrun::DistributedOptions options;
  options.max_gradient_norm = 1e6;  // of 2e3 at most
  options.check_every = 1;
  dtrun::DistributedOptimizer optimizer(job.world(), sgd, options);
  dtrun::BroadcastParameters(job.world(), sgd.parameters());
  for (int step = 0; step < 4; ++step) {
    optimizer.ZeroGradients();
    for (size_t i = 3; i-- > 0;) {
      dtrun::Parameter& parameter = optimizer.parameters()[i];
      // In the last step, no rank has a gradient for p1, and only rank 0 has a gradient for p0.
      if (step == 3 && (i == 1 || (i == 0 && job.rank() > 0))) {
        optimizer.MarkUnused(i);
        continue;
      }
      std::vector<float> gradient = sgd.Read(parameter.gradient);
      for (float& each : gradient) each += static_cast<float>(job.rank() + step);
      sgd.Write(parameter.gradient, gradient);
      optimizer.MarkReady(i);
    }
    optimizer.Step();
  }
  std::string text = "rank " + std::to_string(job.rank()) + ":";
  for (const dtrun::Parameter& parameter : sgd.parameters()) {
    const std::vector<float> values = sgd.Read(parameter.value);
    for (const float value : values)
      if (value != values[0]) text += " uneven";
    char number[32];
    std::snprintf(number, sizeof number, " %g", static_cast<double>(values[0]));
    text += number;
  }
  std::printf("%s\n", text.c_str());
}

// All-reduces the program's own memory before, during and after its registration.
std::string RegisteredSums(dtrun::Context& job) {
  constexpr uint64_t kCount = 1 << 20;
  const int index = job.local_rank() % dtrun::gpu::DeviceCount();
  const dtrun::gpu::Stream stream(dtrun::gpu::Device::Get(index));
  Sgd own(stream, {kCount});
  const Buffer buffer = own.parameters()[0].value;
  own.Write(buffer, std::vector<float>(kCount, 1));
  std::string text;
  const auto sum = [&] {
    job.world().AllReduce(buffer, dtrun::ReduceOp::kSum);
    const std::vector<float> values = own.Read(buffer);
    dtrun::CheckDeviceCollectives(job.world());
    text += " " + std::to_string(static_cast<int>(values.front())) +
            (values == std::vector<float>(kCount, values[0]) ? "" : " uneven");
  };
  sum();
  {
    const dtrun::RegisteredMemory registered(job.world(), index, buffer.data, buffer.bytes());
    text +=
        registered.data() == buffer.data && registered.bytes() == buffer.bytes() ? "" : " not it";
    text += registered.obstacle();
    sum();
  }
  sum();
  return text;
}

// The public list of devices, compared with the driver's facts about each device.
std::string DeviceList() {
  const std::vector<dtrun::DeviceDescription> devices = dtrun::Devices();
  std::string text = devices[0].device.name();
  for (size_t i = 1; i < devices.size(); ++i) {
    const dtrun::gpu::Device& device = dtrun::gpu::Device::Get(static_cast<int>(i) - 1);
    const bool same = devices[i].model == device.name() && devices[i].bus_id == device.bus_id() &&
                      devices[i].memory_bytes == device.Memory().total;
    text += " " + devices[i].device.name() + (same ? "" : " (not what the driver says)");
  }
  return text;
}

// The error of dtrun_describe_cuda_device for a GPU that does not exist.
std::string DescriptionError() {
  const char* text = "";
  uint64_t bytes = 0;
  dtrun_error* const error = dtrun_describe_cuda_device(99, &text, &text, &bytes);
  std::string told = error == nullptr ? "none" : dtrun_error_message(error);
  dtrun_error_destroy(error);
  return told;
}

}  // namespace

int main() {
  try {
    dtrun::Context job = dtrun::Init();
    Train(job);
    const std::string sums = RegisteredSums(job);
    std::printf("rank %d: sums%s\n", job.rank(), sums.c_str());
    if (job.rank() == 0)
      std::printf("devices: %s\n%s\n", DeviceList().c_str(), DescriptionError().c_str());
    job.Shutdown();
    return 0;
  } catch (const dtrun::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
