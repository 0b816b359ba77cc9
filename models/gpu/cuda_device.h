#ifndef DTRUN_MODELS_GPU_CUDA_DEVICE_H_
#define DTRUN_MODELS_GPU_CUDA_DEVICE_H_

#include <dtrun/strategy.h>

#include <cstdint>
#include <functional>
#include <memory>

#include "models/layers/compute_device.h"

namespace dtrun::models {

/// Which parts of a network are rewritten into faster forms before the GPU computes it.
enum class Rewrites {
  kAll,
  kNone,  ///< each operation by its own kernel: the form that others are checked against
};

/// The memory of a network's parameters and buffers, and the device of their optimizer.
enum class ParameterMemory {
  kGpu,
  /// The host, for strategies and sums of gradients that need the parameters there. Each step
  /// copies the values to the GPU, and the gradients back.
  kHost,
};

struct CudaDeviceOptions {
  int index = 0;
  ParameterMemory parameters = ParameterMemory::kGpu;
  /// For f32: products may round their factors to TF32's 10 bits of mantissa.
  bool tf32 = true;
  /// Times the algorithms that cuDNN and cuBLASLt propose, and takes the fastest. Another process
  /// may then compute other bits. Otherwise the first algorithm that works.
  bool fastest_algorithms = false;
  Rewrites rewrites = Rewrites::kAll;
  uint64_t workspace_bytes = 128 << 20;  ///< for cuDNN and cuBLASLt
  uint64_t memory_bytes = 0;             ///< limit of this process on each GPU; 0: no limit
};

/// GPU `index` as the device of a Sequential, with a stream of its own. cuDNN computes
/// convolutions, cuBLASLt computes products, and kernels of dtrun compute everything else. Networks
/// compute in f32, bf16 or f16; parameters, their gradients and buffers are f32. A network takes a
/// whole chunk (micro_batch * micro_batches) at a time. The gradients of products and convolutions
/// are rounded to the network's dtype. f16 needs a loss scale (ReplicaOptions::loss_scale), because
/// small gradients become zero without one.
///
/// Throws Error kUnavailable, with the reason, if there is no such GPU.
std::unique_ptr<ComputeDevice> MakeCudaDevice(const CudaDeviceOptions& options = {});

/// The device of a strategy's replica: the CPU, or a GPU with the options' defaults.
///
///   const auto device = MakeDevice(*strategy);
///   Sequential model(input, std::move(layers), {.device = device.get()});
///   Adam optimizer(model.parameters(), {}, *device);
inline std::unique_ptr<ComputeDevice> MakeDevice(const Strategy& strategy) {
  const Device device = strategy.device();
  CheckDevice(device);
  if (device.kind == DeviceKind::kCpu) return MakeCpuDevice();
  CudaDeviceOptions options;
  options.index = device.index;
  if (strategy.parameters_in_host_memory()) options.parameters = ParameterMemory::kHost;
  return MakeCudaDevice(options);
}

/// The largest power of two of examples, at most `most`, for which a network fits into this rank's
/// part of the free memory of GPU `index`. `sharers` ranks share the memory in equal parts. `make`
/// makes the network, and all else that needs memory, for a number of examples, and returns their
/// owner. Throws the errors of `make`, and Error kUnavailable if not even one example fits.
uint64_t LargestGpuBatch(
    int index, int sharers, uint64_t most,
    const std::function<std::shared_ptr<void>(uint64_t examples)>& make);

}  // namespace dtrun::models

#endif  // DTRUN_MODELS_GPU_CUDA_DEVICE_H_
