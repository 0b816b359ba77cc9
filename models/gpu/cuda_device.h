#ifndef DTRUN_MODELS_GPU_CUDA_DEVICE_H_
#define DTRUN_MODELS_GPU_CUDA_DEVICE_H_

#include <cstdint>
#include <memory>

#include "models/layers/compute_device.h"

namespace dtrun::models {

/// Which parts of a network are rewritten into faster forms before the GPU computes it.
enum class Rewrites {
  kAll,
  kNone,  ///< each operation by its own kernel: the form that others are checked against
};

struct CudaDeviceOptions {
  int index = 0;
  /// For f32: products may round their factors to TF32's 10 bits of mantissa.
  bool tf32 = true;
  Rewrites rewrites = Rewrites::kAll;
  uint64_t workspace_bytes = 128 << 20;  ///< for cuDNN and cuBLASLt
};

/// GPU `index` as the device of a Sequential, with a stream of its own. cuDNN computes
/// convolutions, cuBLASLt computes products, and kernels of dtrun compute everything else. Networks
/// compute in f32, bf16 or f16; parameters, their gradients and buffers are f32, in the GPU's
/// memory. A network takes a whole chunk (micro_batch * micro_batches) at a time. The gradients of
/// products and convolutions are rounded to the network's dtype. f16 has no loss scale here: small
/// gradients become zero, so prefer bf16.
///
/// Throws Error kUnavailable, with the reason, if there is no such GPU.
std::unique_ptr<ComputeDevice> MakeCudaDevice(const CudaDeviceOptions& options = {});

/// The CPU, or a GPU with the options' defaults: the device of a strategy's replica.
///
///   const auto device = MakeDevice(strategy->device());
///   Sequential model(input, std::move(layers), {.device = device.get()});
///   Adam optimizer(model.parameters(), {}, *device);
inline std::unique_ptr<ComputeDevice> MakeDevice(const Device& device) {
  CheckDevice(device);
  if (device.kind == DeviceKind::kCpu) return MakeCpuDevice();
  return MakeCudaDevice({.index = device.index});
}

}  // namespace dtrun::models

#endif  // DTRUN_MODELS_GPU_CUDA_DEVICE_H_
