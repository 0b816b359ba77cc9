// A GPU as the device of networks and optimizers. All work goes to one stream, so that the updates
// of an optimizer follow the backward pass of its network.

#include "models/gpu/cuda_device.h"

#include <dtrun/error.h>

#include <algorithm>
#include <string>
#include <utility>

#include "gpu/memory.h"
#include "models/gpu/cuda_network.h"
#include "models/gpu/layer_args.h"
#include "models/message_text.h"

extern "C" {
extern const unsigned long long dtrun_model_layer_kernels[];
extern const unsigned long long dtrun_model_batch_norm_kernels[];
extern const unsigned long long dtrun_model_layer_update_kernels[];
}

namespace dtrun::models {

// The beginning of a kernel's name selects the image. The first match counts. The images stay
// loaded until the process ends (gpu::Kernels).
gpu::Kernels& LayerImageWith(const std::string& kernel) {
  static auto& layer = *new gpu::Kernels(dtrun_model_layer_kernels, "model_layer_kernels");
  static auto& norm = *new gpu::Kernels(dtrun_model_batch_norm_kernels, "model_batch_norm_kernels");
  static auto& update =
      *new gpu::Kernels(dtrun_model_layer_update_kernels, "model_layer_update_kernels");
  const std::pair<const char*, gpu::Kernels&> images[] = {
      {"dtrun_layer_batch_norm", norm}, {"dtrun_layer_channel_sums", norm},
      {"dtrun_layer_axpy", update},     {"dtrun_layer_adam", update},
      {"dtrun_layer_descend", update},  {"dtrun_layer_lamb", update},
  };
  for (const auto& [beginning, image] : images)
    if (kernel.rfind(beginning, 0) == 0) return image;
  return layer;
}

namespace {

class CudaDevice : public ComputeDevice {
 public:
  explicit CudaDevice(const CudaDeviceOptions& options)
      : options_(options), stream_(gpu::Device::Get(options.index)) {
    LayerImageWith("");  // makes all three images
    gpu::Kernels::LoadAll(stream_.device());
    results();
  }

  Device device() const override { return {DeviceKind::kCuda, options_.index}; }
  int index() const override { return options_.index; }

  DType DtypeFor(DType wanted) const override {
    if (wanted == DType::kF32 || wanted == DType::kBF16 || wanted == DType::kF16) return wanted;
    throw Error(
        ErrorCode::kInvalidArgument,
        Text("a network on a GPU computes in f32, bf16 or f16, got ", NameOf(wanted)));
  }

  std::unique_ptr<PlannedNetwork> Plan(const NetworkToPlan& network) override {
    return PlanCudaNetwork(stream_, options_, network);
  }

  Buffer Allocate(uint64_t count, DType dtype, std::shared_ptr<void>& owner) override {
    const uint64_t bytes = std::max<uint64_t>(count * SizeOf(dtype), 1);
    const auto memory = std::make_shared<gpu::DeviceMemory>(stream_.device(), bytes);
    owner = memory;
    Buffer buffer(memory->as<void>(), count, dtype);
    buffer.device = options_.index;
    buffer.stream = stream_.get();
    return buffer;
  }

  void Copy(const Buffer& from, const Buffer& to) override {
    if (from.count == 0) return;
    const gpu::DeviceScope scope(stream_.device());
    gpu::Copy(from, to, stream_.get());
    stream_.Synchronize();
  }

  void Synchronize() override { stream_.Synchronize(); }

  void AddScaled(const Buffer& from, float factor, const Buffer& to) override {
    Enqueue(
        "axpy", from.count,
        LayerAxpyArgs{
            static_cast<const float*>(from.data), static_cast<float*>(to.data), from.count,
            factor});
  }

  void Adam(
      const float* gradient, size_t count, const AdamFactors& factors, float* m, float* v,
      float* value) override {
    Enqueue(
        "adam", count,
        LayerAdamArgs{
            gradient, m, v, value, count, factors.rate, factors.m_share, factors.v_share,
            factors.epsilon, factors.decay});
  }

  void Descend(
      const float* gradient, size_t count, const DescentFactors& factors, float* velocity,
      float* value) override {
    Enqueue(
        velocity == nullptr ? "descend" : "descend_with_momentum", count,
        LayerDescentArgs{
            gradient, velocity, value, count, factors.rate, factors.momentum, factors.decay,
            factors.nesterov ? 1u : 0u});
  }

  void Lamb(
      const float* gradient, size_t count, const LambFactors& factors, double rate, bool adapts,
      float* m, float* v, float* value) override {
    const LayerLambRule rule{factors.m_share,      factors.v_share, factors.m_correction,
                             factors.v_correction, factors.epsilon, factors.decay};
    LaunchLayer(
        stream_, "lamb_moments", {kBlocks, 256},
        LayerLambMomentsArgs{gradient, m, v, value, results(), partials(), counter(), count, rule});
    Enqueue(
        "lamb_apply", count,
        LayerLambApplyArgs{m, v, value, adapts ? results() : nullptr, count, rate, rule});
  }

 private:
  static constexpr uint32_t kBlocks = 64;

  template <typename Args>
  void Enqueue(const std::string& name, uint64_t count, const Args& args) const {
    LaunchLayer(stream_, name, {gpu::BlocksFor(count, 256, 1024), 256}, args);
  }

  // Scratch memory of sums: two results, a counter, and two partial sums of each block.
  double* results() {
    if (!sums_) sums_ = gpu::DeviceMemory(stream_.device(), (3 + 2 * kBlocks) * sizeof(double));
    return sums_.as<double>();
  }
  uint32_t* counter() { return reinterpret_cast<uint32_t*>(results() + 2); }
  double* partials() { return results() + 3; }

  CudaDeviceOptions options_;
  gpu::Stream stream_;
  gpu::DeviceMemory sums_;
};

// A GPU for networks whose parameters are in host memory: the updates are the host's.
class CudaDeviceForHost : public ComputeDevice {
 public:
  explicit CudaDeviceForHost(const CudaDeviceOptions& options) : gpu_(options) {}

  Device device() const override { return gpu_.device(); }
  DType DtypeFor(DType wanted) const override { return gpu_.DtypeFor(wanted); }
  std::unique_ptr<PlannedNetwork> Plan(const NetworkToPlan& network) override {
    return gpu_.Plan(network);
  }
  void Synchronize() override { gpu_.Synchronize(); }
  void AddScaled(const Buffer& from, float factor, const Buffer& to) override {
    Cpu().AddScaled(from, factor, to);
  }

 private:
  CudaDevice gpu_;
};

uint64_t Less(uint64_t from, uint64_t what) { return from > what ? from - what : 0; }

}  // namespace

std::unique_ptr<ComputeDevice> MakeCudaDevice(const CudaDeviceOptions& options) {
  CheckDevice({DeviceKind::kCuda, options.index});
  if (options.memory_bytes != 0) gpu::SetMemoryLimit(options.memory_bytes);
  if (options.parameters == ParameterMemory::kHost)
    return std::make_unique<CudaDeviceForHost>(options);
  return std::make_unique<CudaDevice>(options);
}

// The memory is a linear function of the examples, so two small networks show all others.
uint64_t LargestGpuBatch(
    int index, int sharers, uint64_t most,
    const std::function<std::shared_ptr<void>(uint64_t examples)>& make) {
  const gpu::Device& device = gpu::Device::Get(index);
  const uint64_t before = gpu::MemoryTaken(index);
  const gpu::Device::MemoryInfo memory = device.Memory();
  // Libraries and kernels need memory as well.
  const uint64_t reserve = std::min<uint64_t>(memory.total / 32, 1 << 30);
  uint64_t room = Less(memory.free, reserve) / static_cast<uint64_t>(sharers);
  if (gpu::MemoryLimit() != 0) room = std::min(room, Less(gpu::MemoryLimit(), before));
  const auto bytes_for = [&](uint64_t examples) {
    const std::shared_ptr<void> owner = make(examples);
    return gpu::MemoryTaken(index) - before;
  };
  const uint64_t of_one = bytes_for(1), more = bytes_for(2) - of_one;
  if (of_one > room) {
    throw Error(
        ErrorCode::kUnavailable,
        Text(
            "a batch of one example on GPU ", index, " (", device.name(), ") needs ", of_one,
            " bytes, of which ", room, " are free for this rank"));
  }
  uint64_t largest = 1;
  while (2 * largest <= most && of_one + (2 * largest - 1) * more <= room) largest *= 2;
  return largest;
}

}  // namespace dtrun::models
