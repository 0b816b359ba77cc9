// Every rank probes every backend of the table; the verdicts are gathered before anything is
// created, so all ranks take the same one.

#include "ops/cuda/device_backends.h"

#include <string>
#include <vector>

#include "base/text.h"
#include "dtrun/error.h"
#include "gpu/device.h"
#include "ops/communicator.h"

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
  static const std::vector<Backend> backends = {};
  return backends;
}

// What `ask` throws as text; the first of all ranks, with the rank; "" when nobody threw.
template <typename Ask>
std::string Verdict(Communicator& host, const Ask& ask) {
  std::string mine;
  try {
    mine = ask();
  } catch (const Error& error) {
    mine = error.what();
  }
  const std::vector<std::string> reasons = AllGatherBytes(host, mine);
  for (size_t rank = 0; rank < reasons.size(); ++rank) {
    if (reasons[rank].empty()) continue;
    return Text(host.members().List({static_cast<int>(rank)}), ": ", reasons[rank]);
  }
  return "";
}

std::unique_ptr<DeviceGroup> CreateDeviceGroup(Communicator& host, int index) {
  const gpu::Device* device = nullptr;
  std::string refusals = Verdict(host, [&]() -> std::string {
    device = &gpu::Device::Get(index);
    return "";
  });
  if (!refusals.empty()) throw Error(ErrorCode::kUnavailable, refusals);
  for (const Backend& backend : Backends()) {
    const std::string reason = Verdict(host, [&] { return backend.probe(host, *device); });
    if (reason.empty()) return backend.create(host, *device);
    refusals += Text(refusals.empty() ? "" : "; ", backend.name, ": ", reason);
  }
  throw Error(
      ErrorCode::kUnavailable, Text("no backend reaches the GPUs of these ranks (", refusals, ")"));
}

}  // namespace

DeviceGroupFactory DeviceBackends() { return CreateDeviceGroup; }

}  // namespace dtrun::ops
