// Every rank probes every backend of the table; the verdicts are gathered before anything is
// created, so all ranks take the same one.

#include "ops/cuda/device_backends.h"

#include <string>
#include <vector>

#include "base/text.h"
#include "dtrun/error.h"
#include "gpu/device.h"
#include "gpu/memory.h"
#include "ops/communicator.h"
#include "ops/cuda/agree.h"
#include "ops/cuda/cuda_ipc_group.h"
#include "ops/nccl/nccl_group.h"

namespace dtrun::ops {
namespace {

using base::Text;

struct Backend {
  const char* name;
  // Why this rank does not use it; "" when it does. Not asked when the user wants no other.
  // Collective.
  std::string (*probe)(Communicator& host, const gpu::Device& device);
  // Collective over the ranks of `host`.
  std::unique_ptr<DeviceGroup> (*create)(Communicator& host, const gpu::Device& device);
};

// In the order of preference.
const std::vector<Backend>& Backends() {
  static const std::vector<Backend> backends = {
      {"cuda_ipc", cuda::WhyNotCudaIpc, cuda::CreateCudaIpcGroup},
      {"nccl", ProbeNccl, CreateNcclGroup},
  };
  return backends;
}

std::unique_ptr<DeviceGroup> CreateDeviceGroup(
    Communicator& host, int index, const DeviceSettings& settings) {
  const gpu::Device* device = nullptr;
  std::string refusals = cuda::FirstObjection(host, [&]() -> std::string {
    device = &gpu::Device::Get(index);
    return "";
  });
  if (!refusals.empty()) throw Error(ErrorCode::kUnavailable, refusals);
  gpu::SetMemoryLimit(settings.memory_bytes);
  for (const Backend& backend : Backends()) {
    if (settings.backend != "auto" && settings.backend != backend.name) continue;
    const bool wanted = settings.backend == backend.name;
    const std::string reason =
        cuda::FirstObjection(host, [&] { return wanted ? "" : backend.probe(host, *device); });
    if (reason.empty()) return backend.create(host, *device);
    refusals += Text(refusals.empty() ? "" : "; ", backend.name, ": ", reason);
  }
  throw Error(
      ErrorCode::kUnavailable, Text("no backend reaches the GPUs of these ranks (", refusals, ")"));
}

}  // namespace

DeviceGroupFactory DeviceBackends(const DeviceSettings& settings) {
  return [settings](Communicator& host, int device) {
    return CreateDeviceGroup(host, device, settings);
  };
}

}  // namespace dtrun::ops
