// Every rank probes every backend of the table; the verdicts are gathered before anything is
// created, so all ranks take the same one.

#include "ops/cuda/device_backends.h"

#include <string>
#include <vector>

#include "base/text.h"
#include "dtrun/error.h"
#include "gpu/device.h"
#include "ops/communicator.h"
#include "ops/cuda/agree.h"
#include "ops/cuda/cuda_ipc_group.h"
#include "ops/cuda/host_staged_group.h"

namespace dtrun::ops {
namespace {

using base::Text;

struct Backend {
  const char* name;
  // Why this rank does not use it; "" when it does. Not collective.
  std::string (*probe)(Communicator& host, const gpu::Device& device);
  // Collective over the ranks of `host`.
  std::unique_ptr<DeviceGroup> (*create)(Communicator& host, const gpu::Device& device);
};

// In the order of preference.
const std::vector<Backend>& Backends() {
  static const std::vector<Backend> backends = {
      {"cuda_ipc", cuda::WhyNotCudaIpc, cuda::CreateCudaIpcGroup},
      {"host_staged", cuda::WhyNotHostStaged, cuda::CreateHostStagedGroup},
  };
  return backends;
}

// `wanted`: the only backend to consider, or "auto".
std::unique_ptr<DeviceGroup> CreateDeviceGroup(
    Communicator& host, int index, const std::string& wanted) {
  const gpu::Device* device = nullptr;
  std::string refusals = cuda::FirstObjection(host, [&]() -> std::string {
    device = &gpu::Device::Get(index);
    return "";
  });
  if (!refusals.empty()) throw Error(ErrorCode::kUnavailable, refusals);
  for (const Backend& backend : Backends()) {
    if (wanted != "auto" && wanted != backend.name) continue;
    std::string reason = cuda::FirstObjection(host, [&] { return backend.probe(host, *device); });
    try {
      if (reason.empty()) return backend.create(host, *device);
    } catch (const Error& error) {
      // What is found out on the way, by all ranks.
      if (error.code() != ErrorCode::kUnavailable) throw;
      reason = error.what();
    }
    refusals += Text(refusals.empty() ? "" : "; ", backend.name, ": ", reason);
  }
  throw Error(
      ErrorCode::kUnavailable, Text("no backend reaches the GPUs of these ranks (", refusals, ")"));
}

}  // namespace

DeviceGroupFactory DeviceBackends(const std::string& wanted) {
  return [wanted](Communicator& host, int index) { return CreateDeviceGroup(host, index, wanted); };
}

}  // namespace dtrun::ops
