#include "launcher/doctor/machine.h"

#include <hwloc.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <sstream>

#include "base/launch_env.h"
#include "base/text.h"
#include "launcher/cpus.h"
#include "launcher/system_file.h"

namespace dtrun::launcher {
namespace {

class Topology {
 public:
  Topology() {
    if (hwloc_topology_init(&topology_) != 0) return;
    loaded_ = hwloc_topology_load(topology_) == 0;
  }
  ~Topology() {
    if (topology_ != nullptr) hwloc_topology_destroy(topology_);
  }
  Topology(const Topology&) = delete;
  Topology& operator=(const Topology&) = delete;

  // 0 where the machine does not say.
  int Count(hwloc_obj_type_t type) const {
    return loaded_ ? std::max(0, hwloc_get_nbobjs_by_type(topology_, type)) : 0;
  }

 private:
  hwloc_topology_t topology_ = nullptr;
  bool loaded_ = false;
};

// "MemAvailable:   23456 kB"
int64_t LineOfMeminfo(const std::string& text, const std::string& name) {
  for (const std::string& line : base::Split(text, '\n')) {
    if (!line.starts_with(name + ":")) continue;
    int64_t kib = 0;
    std::istringstream(line.substr(name.size() + 1)) >> kib;
    return kib * 1024;
  }
  return 0;
}

int64_t FreeBytes(const std::string& folder) {
  struct statvfs status;
  if (statvfs(folder.c_str(), &status) != 0) return 0;
  return static_cast<int64_t>(status.f_bavail) * static_cast<int64_t>(status.f_frsize);
}

}  // namespace

CpuFacts OwnCpus() {
  const Topology topology;
  return {
      .total = static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN)),
      .allowed = static_cast<int>(AllowedCpus().size()),
      .quota = CpuQuota(ReadFileOfSystem).value_or(0),
      .cores = topology.Count(HWLOC_OBJ_CORE),
      .sockets = topology.Count(HWLOC_OBJ_PACKAGE),
      .numa_nodes = topology.Count(HWLOC_OBJ_NUMANODE)};
}

MemoryFacts OwnMemory() {
  const std::string meminfo = ReadFileOfSystem("/proc/meminfo").value_or("");
  std::string folder = base::ProcessEnv("TMPDIR").value_or("");
  if (folder.empty()) folder = "/tmp";
  return {
      .total_bytes = LineOfMeminfo(meminfo, "MemTotal"),
      .available_bytes = LineOfMeminfo(meminfo, "MemAvailable"),
      .temporary_folder = folder,
      .temporary_writable = access(folder.c_str(), W_OK | X_OK) == 0,
      .temporary_free_bytes = FreeBytes(folder),
      .shared_free_bytes = FreeBytes("/dev/shm")};
}

}  // namespace dtrun::launcher
