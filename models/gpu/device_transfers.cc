#include "models/gpu/device_transfers.h"

namespace dtrun::models {

void WriteBytes(
    const gpu::Stream& stream, const gpu::DeviceMemory& to, uint64_t offset, const void* from,
    uint64_t bytes) {
  const gpu::DeviceScope scope(stream.device());
  gpu::CopyToDevice(to.address() + offset, from, bytes, stream.get());
  stream.Synchronize();
}

void WriteBlock(
    const gpu::Stream& stream, const NetworkPlan& plan, float* block,
    const std::vector<NamedBuffer>& values) {
  std::vector<float> flat(plan.parameter_count);
  for (size_t i = 0; i < values.size(); ++i) {
    const ParameterPlace& place = plan.parameters[i];
    place.ToDevice(static_cast<const float*>(values[i].buffer.data), flat.data() + place.offset);
  }
  const gpu::DeviceScope scope(stream.device());
  gpu::CopyToDevice(gpu::AddressOf(block), flat.data(), flat.size() * sizeof(float), stream.get());
  stream.Synchronize();
}

void ReadBlock(
    const gpu::Stream& stream, const NetworkPlan& plan, const float* block,
    const std::vector<NamedBuffer>& values) {
  std::vector<float> flat(plan.parameter_count);
  const gpu::DeviceScope scope(stream.device());
  gpu::CopyToHost(flat.data(), gpu::AddressOf(block), flat.size() * sizeof(float), stream.get());
  stream.Synchronize();
  for (size_t i = 0; i < values.size(); ++i) {
    const ParameterPlace& place = plan.parameters[i];
    place.ToHost(flat.data() + place.offset, static_cast<float*>(values[i].buffer.data));
  }
}

}  // namespace dtrun::models
