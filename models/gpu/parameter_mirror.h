#ifndef DTRUN_MODELS_GPU_PARAMETER_MIRROR_H_
#define DTRUN_MODELS_GPU_PARAMETER_MIRROR_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "gpu/memory.h"
#include "gpu/stream.h"
#include "models/layers/compute_device.h"

namespace dtrun::models {

/// The parameters and buffers of a network as a GPU computes with them. If they are in the GPU's
/// memory, the mirror is the parameters themselves, and all copies do nothing. If they are in host
/// memory, the mirror has a copy of them on the GPU: values go there before a step, and gradients
/// come back as soon as they are complete. Not thread-safe.
class ParameterMirror {
 public:
  /// `stream` and the lists of `network` outlive the mirror.
  ParameterMirror(const gpu::Stream& stream, const NetworkToPlan& network);

  bool is_copy() const { return is_copy_; }
  /// Addresses in the GPU's memory.
  float* value(size_t parameter) const {
    return Of(values_, parameters_[parameter].value, parameter);
  }
  float* gradient(size_t parameter) const {
    return Of(gradients_, parameters_[parameter].gradient, parameter);
  }
  float* buffer(size_t i) const {
    if (!is_copy_) return static_cast<float*>(buffers_[i].buffer.data);
    return buffer_values_.as<float>() + buffer_offsets_[i];
  }

  /// Enqueues copies of all values and buffers to the GPU.
  void Upload();
  /// Enqueues a copy of a gradient to the host.
  void EnqueueGradient(size_t parameter);
  /// For each gradient of EnqueueGradient, in that order: waits for its copy, writes it to the
  /// parameter's gradient and calls `on_ready`.
  void Deliver(const OnReady& on_ready);
  /// Copies the buffers to the host and waits. The forward pass of training changes them.
  void DownloadBuffers();

 private:
  float* Of(const gpu::DeviceMemory& copies, const Buffer& own, size_t parameter) const {
    if (!is_copy_) return static_cast<float*>(own.data);
    return copies.as<float>() + offsets_[parameter];
  }

  const gpu::Stream& stream_;
  std::vector<Parameter>& parameters_;
  std::vector<NamedBuffer>& buffers_;
  bool is_copy_;
  std::vector<uint64_t> offsets_, buffer_offsets_;
  gpu::DeviceMemory values_, gradients_, buffer_values_;
  gpu::PinnedMemory returned_;
  std::deque<gpu::Event> arrived_;  // by parameter
  std::vector<size_t> returning_;
};

}  // namespace dtrun::models

#endif  // DTRUN_MODELS_GPU_PARAMETER_MIRROR_H_
