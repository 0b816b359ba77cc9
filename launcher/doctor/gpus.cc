// The driver brings libnvidia-ml.so.1 and no header, so the few functions that are asked are
// declared here. Their numbers are part of that library's ABI.

#include "launcher/doctor/gpus.h"

#include <dlfcn.h>

#include <string>

namespace dtrun::launcher {
namespace {

using Device = struct NvmlDevice*;

struct DeviceMemory {
  unsigned long long total, free, used;
};

constexpr int kSuccess = 0, kPeerOverNvlink = 2, kPeerStatusOk = 0;

// How far two GPUs are from each other on PCIe.
struct Distance {
  int level;
  const char* name;
};
constexpr Distance kDistances[] = {{0, "same board"},     {10, "one PCIe switch"},
                                   {20, "PCIe switches"}, {30, "one PCIe host bridge"},
                                   {40, "one NUMA node"}, {50, "across NUMA nodes"}};

class Nvml {
 public:
  Nvml() : library_(dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL)) {
    ready_ = Call("nvmlInit_v2") == kSuccess;
  }
  // The library stays: its own threads may be running.
  ~Nvml() {
    if (ready_) Call("nvmlShutdown");
  }
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  bool ready() const { return ready_; }

  template <typename... Arguments>
  int Call(const char* name, Arguments... arguments) const {
    void* function = library_ == nullptr ? nullptr : dlsym(library_, name);
    if (function == nullptr) return -1;
    return reinterpret_cast<int (*)(Arguments...)>(function)(arguments...);
  }

 private:
  void* library_;
  bool ready_ = false;
};

std::string LinkBetween(const Nvml& nvml, Device a, Device b) {
  int status = -1, level = -1;
  if (nvml.Call("nvmlDeviceGetP2PStatus", a, b, kPeerOverNvlink, &status) == kSuccess &&
      status == kPeerStatusOk)
    return "NVLink";
  if (nvml.Call("nvmlDeviceGetTopologyCommonAncestor", a, b, &level) == kSuccess)
    for (const Distance& distance : kDistances)
      if (distance.level == level) return distance.name;
  return "unknown";
}

GpuFacts FactsOf(const Nvml& nvml, Device device, const std::vector<Device>& all) {
  GpuFacts facts;
  char name[96] = {};
  DeviceMemory memory = {};
  if (nvml.Call("nvmlDeviceGetName", device, name, static_cast<unsigned>(sizeof name)) == kSuccess)
    facts.name = name;
  if (nvml.Call("nvmlDeviceGetMemoryInfo", device, &memory) == kSuccess)
    facts.memory_bytes = static_cast<int64_t>(memory.total);
  for (const Device other : all)
    facts.links.push_back(other == device ? "itself" : LinkBetween(nvml, device, other));
  return facts;
}

}  // namespace

std::vector<GpuFacts> OwnGpus() {
  const Nvml nvml;
  unsigned count = 0;
  if (!nvml.ready() || nvml.Call("nvmlDeviceGetCount_v2", &count) != kSuccess) return {};
  std::vector<Device> devices;
  for (unsigned i = 0; i < count; ++i) {
    Device device = nullptr;
    if (nvml.Call("nvmlDeviceGetHandleByIndex_v2", i, &device) == kSuccess)
      devices.push_back(device);
  }
  std::vector<GpuFacts> gpus;
  for (const Device device : devices) gpus.push_back(FactsOf(nvml, device, devices));
  return gpus;
}

}  // namespace dtrun::launcher
