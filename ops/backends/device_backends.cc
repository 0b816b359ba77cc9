// The backends are tried in the order of the table. All ranks probe a backend and gather their
// verdicts before any rank creates it, so all ranks choose the same backend.

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/text.h"
#include "dtrun/error.h"
#include "gpu/gpu_device.h"
#include "gpu/memory.h"
#include "ops/backends/backends.h"
#include "ops/communicator/communicator_base.h"
#include "ops/communicator/communicator_setup.h"
#include "ops/cuda/cuda_ipc_group.h"
#include "ops/cuda/host_staged_group.h"
#include "ops/hierarchical/hierarchical_device_group.h"
#include "ops/nccl/nccl_group.h"

namespace dtrun::ops {
namespace {

using base::Text;

struct DeviceBackend {
  const char* name;
  // Returns why this rank cannot use the backend, or "". `wanted`: the user requested it by name.
  // Collective.
  std::string (*probe)(Communicator& host, const gpu::Device& device, bool wanted);
  // Collective over the ranks of `host`.
  std::unique_ptr<DeviceGroup> (*create)(
      Communicator& host, const gpu::Device& device, bool wanted);
};

// In the order of preference.
const std::vector<DeviceBackend>& Backends() {
  static const std::vector<DeviceBackend> backends = {
      {"cuda_ipc", cuda::WhyNotCudaIpc,
       [](Communicator& host, const gpu::Device& device, bool) -> std::unique_ptr<DeviceGroup> {
         return cuda::CreateCudaIpcGroup(host, device);
       }},
      // NCCL itself refuses ranks that share a GPU, unless their NCCL_HOSTID differs.
      {"nccl",
       [](Communicator& host, const gpu::Device& device, bool wanted) {
         return wanted ? "" : ProbeNccl(host, device);
       },
       [](Communicator& host, const gpu::Device& device, bool) {
         return CreateNcclGroup(host, device);
       }},
      {"hierarchical", cuda::WhyNotHierarchical,
       [](Communicator& host, const gpu::Device& device, bool wanted) {
         return cuda::CreateHierarchicalGroup(host, device, {.wanted = wanted});
       }},
      {"host_staged", [](Communicator&, const gpu::Device&, bool) { return std::string(); },
       [](Communicator& host, const gpu::Device& device, bool) {
         return cuda::CreateHostStagedGroup(host, device);
       }},
  };
  return backends;
}

// Whether `names`, "cuda_ipc,hierarchical", has `name`.
bool Lists(const std::string& names, const std::string& name) {
  return ("," + names + ",").find("," + name + ",") != std::string::npos;
}

std::unique_ptr<DeviceGroup> CreateDeviceGroup(
    Communicator& host, int index, const DeviceSettings& settings,
    const std::function<void(const std::string&)>& warn) {
  const gpu::Device* device = nullptr;
  std::string refusals = cuda::FirstObjection(host, [&]() -> std::string {
    device = &gpu::Device::Get(index);
    return "";
  });
  if (!refusals.empty()) throw Error(ErrorCode::kUnavailable, refusals);
  if (settings.memory_bytes != 0) gpu::SetMemoryLimit(settings.memory_bytes);
  for (const DeviceBackend& backend : Backends()) {
    if (settings.backend != "auto" && !Lists(settings.backend, backend.name)) continue;
    const bool wanted = settings.backend == backend.name;
    std::string reason =
        cuda::FirstObjection(host, [&] { return backend.probe(host, *device, wanted); });
    try {
      if (reason.empty()) return backend.create(host, *device, wanted);
    } catch (const Error& error) {
      // All ranks found during creation that the backend cannot serve them.
      if (error.code() != ErrorCode::kUnavailable) throw;
      reason = error.what();
      if (!wanted)
        warn(Text(
            "the GPU backend ", backend.name, " fails: ", reason, "; dtrun takes the next one"));
    }
    refusals += Text(refusals.empty() ? "" : "; ", backend.name, ": ", reason);
  }
  throw Error(
      ErrorCode::kUnavailable, Text("no backend reaches the GPUs of these ranks (", refusals, ")"));
}

}  // namespace

DeviceGroupFactory DeviceBackends(const DeviceSettings& settings, const base::LogSink& log) {
  // Each communicator makes its group with the same factory.
  const auto warned = std::make_shared<std::atomic<bool>>(false);
  const auto warn = [log, warned](const std::string& text) {
    if (log != nullptr && !warned->exchange(true)) log(base::LogLevel::kWarning, text);
  };
  return [settings, warn](Communicator& host, int device) {
    return CreateDeviceGroup(host, device, settings, warn);
  };
}

}  // namespace dtrun::ops
