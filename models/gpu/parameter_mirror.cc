#include "models/gpu/parameter_mirror.h"

#include <algorithm>
#include <cstring>

namespace dtrun::models {

ParameterMirror::ParameterMirror(const gpu::Stream& stream, const NetworkToPlan& network)
    : stream_(stream),
      parameters_(*network.parameters),
      buffers_(*network.buffers),
      is_copy_(!parameters_.empty() && parameters_[0].value.device < 0) {
  if (!is_copy_) return;
  uint64_t count = 0, buffer_count = 0;
  for (const Parameter& parameter : parameters_) {
    offsets_.push_back(count);
    count += parameter.value.count;
    arrived_.emplace_back(stream.device());
  }
  for (const NamedBuffer& buffer : buffers_) {
    buffer_offsets_.push_back(buffer_count);
    buffer_count += buffer.buffer.count;
  }
  const gpu::Device& device = stream.device();
  values_ = gpu::DeviceMemory(device, count * sizeof(float));
  gradients_ = gpu::DeviceMemory(device, count * sizeof(float));
  buffer_values_ = gpu::DeviceMemory(device, std::max<uint64_t>(buffer_count, 1) * sizeof(float));
  returned_ = gpu::PinnedMemory(device, count * sizeof(float));
}

void ParameterMirror::Upload() {
  if (!is_copy_) return;
  const gpu::DeviceScope scope(stream_.device());
  const auto copy = [&](const Buffer& from, float* to) {
    gpu::CopyToDevice(gpu::AddressOf(to), from.data, from.bytes(), stream_.get());
  };
  for (size_t i = 0; i < parameters_.size(); ++i) copy(parameters_[i].value, value(i));
  for (size_t i = 0; i < buffers_.size(); ++i) copy(buffers_[i].buffer, buffer(i));
}

void ParameterMirror::EnqueueGradient(size_t parameter) {
  const gpu::DeviceScope scope(stream_.device());
  gpu::CopyToHost(
      returned_.as<float>() + offsets_[parameter], gpu::AddressOf(gradient(parameter)),
      parameters_[parameter].gradient.bytes(), stream_.get());
  arrived_[parameter].Record(stream_.get());
  returning_.push_back(parameter);
}

void ParameterMirror::Deliver(const OnReady& on_ready) {
  for (const size_t i : returning_) {
    arrived_[i].Synchronize();
    const Buffer& gradient = parameters_[i].gradient;
    std::memcpy(gradient.data, returned_.as<float>() + offsets_[i], gradient.bytes());
    on_ready(i);
  }
  returning_.clear();
}

void ParameterMirror::DownloadBuffers() {
  if (!is_copy_ || buffers_.empty()) return;
  const gpu::DeviceScope scope(stream_.device());
  for (size_t i = 0; i < buffers_.size(); ++i) {
    const Buffer& to = buffers_[i].buffer;
    gpu::CopyToHost(to.data, gpu::AddressOf(buffer(i)), to.bytes(), stream_.get());
  }
  stream_.Synchronize();
}

}  // namespace dtrun::models
