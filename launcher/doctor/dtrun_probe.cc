// dtrun_probe: the program that dtrun doctor runs on each host, by ssh or as a child. It sends a
// greeting and reads a request (a line of JSON). It sends its clock at once, then the facts of its
// host, and ends. It runs only two programs: mpirun, for its version, and the system's loader,
// which lists libraries.

#include <dlfcn.h>
#include <hwloc.h>
#include <limits.h>
#include <openssl/evp.h>
#include <signal.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "base/json.h"
#include "base/launch_env.h"
#include "base/text.h"
#include "base/version.h"
#include "launcher/doctor/host_facts.h"
#include "launcher/engines/executables.h"
#include "launcher/plan/cpu_binding.h"
#include "launcher/support/host_system.h"
#include "launcher/support/launch_error.h"
#include "launcher/support/quoting.h"

namespace dtrun::launcher {

using base::AsciiJsonText;
using base::ParseJson;
using base::Text;

/// The CPUs and the memory of this machine, as this process may use them.
CpuFacts OwnCpus();
MemoryFacts OwnMemory();

/// The NVIDIA GPUs of this machine, from the driver's library (libnvidia-ml.so.1); none without
/// that library.
std::vector<GpuFacts> OwnGpus();

/// The SHA-256 of a file in hexadecimal digits; "": the file cannot be read.
std::string Sha256OfFile(const std::string& path);

namespace {

using nlohmann::json;

InstallationFacts FindInstallation(const ProbeRequest& request) {
  InstallationFacts facts;
  for (const char* name : {"dtrun_rank", "dtrun_agent"}) {
    try {
      FindHelper(name);
    } catch (const LaunchError& error) {
      facts.missing_files.push_back(name);
    }
  }
  for (const OwnLibrary& library : OwnLibraries()) {
    if (library.file.empty()) continue;  // not installed; a program may bring its own
    for (const std::string& missing : MissingIn(LibraryList(library.file, request.library_path)))
      facts.missing_libraries.push_back(missing + " (for " + library.file + ")");
  }
  std::error_code ignored;
  if (request.mpirun.empty() || !std::filesystem::exists(request.mpirun, ignored)) return facts;
  facts.mpirun = request.mpirun;
  facts.mpirun_version = MpirunVersion(request.mpirun);
  const auto orted = std::filesystem::path(request.mpirun).parent_path() / "orted";
  // Open MPI 5 has prted in place of orted.
  const auto prted = std::filesystem::path(request.mpirun).parent_path() / "prted";
  facts.has_orted =
      std::filesystem::exists(orted, ignored) || std::filesystem::exists(prted, ignored);
  return facts;
}

ProgramFacts ExamineProgram(const ProbeRequest& request) {
  ProgramFacts facts = {request.program, "", "", {}, {}};
  if (request.program.empty()) return facts;
  try {
    std::error_code error;
    if (request.program.front() != '/') std::filesystem::current_path(request.cwd, error);
    if (error) throw LaunchError(ExitCode::kNotFound, "folder " + request.cwd + " does not exist");
    const FileProblem problem = ProblemOfProgram(request.program);
    if (!problem.why.empty())
      throw LaunchError(problem.code, Text(ShellQuoted(request.program), ": ", problem.why));
    const std::string libraries = LibraryList(request.program, request.library_path);
    facts.missing_libraries = MissingIn(libraries);
    facts.mpi_libraries = MpiIn(libraries);
  } catch (const LaunchError& error) {
    facts.problem = error.what();
  }
  if (!std::filesystem::is_directory(request.program)) facts.sha256 = Sha256OfFile(request.program);
  return facts;
}

std::string HostName() {
  char name[HOST_NAME_MAX + 1] = {};
  gethostname(name, HOST_NAME_MAX);
  return name;
}

// dtrun keeps the channel open until it has the facts. If the channel ends earlier, dtrun is gone,
// and the probe ends too.
void EndWithChannel() {
  std::thread([] {
    char byte;
    while (read(STDIN_FILENO, &byte, 1) > 0) {
    }
    _exit(1);
  }).detach();
}

int Main() {
  std::cout << kProbeGreeting << ' ' << base::kVersion << std::endl;
  std::string line;
  if (!std::getline(std::cin, line)) return 1;
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  std::cout << kProbeClock << ' ' << int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec << std::endl;
  const auto request = ParseJson(line).get<ProbeRequest>();
  alarm(static_cast<unsigned>(request.seconds));
  EndWithChannel();
  const HostFacts facts = {
      .host_name = HostName(),
      .installation = FindInstallation(request),
      .program = ExamineProgram(request),
      .cpus = OwnCpus(),
      .memory = OwnMemory(),
      .gpus = OwnGpus(),
      .interfaces = OwnInterfaces()};
  std::cout << AsciiJsonText(facts) << std::endl;
  _exit(0);  // the thread that reads stdin does not end by itself
}

}  // namespace

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

  // 0: not known.
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

// The driver installs libnvidia-ml.so.1 without a header, so the functions are looked up by name.
// The numbers below are part of the library's ABI.

namespace {

using Device = struct NvmlDevice*;

struct DeviceMemory {
  unsigned long long total, free, used;
};

constexpr int kSuccess = 0, kPeerOverNvlink = 2, kPeerStatusOk = 0;

// The distance of two GPUs on PCIe.
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
  // The library stays loaded, because its own threads may still run.
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

std::string Sha256OfFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::unique_ptr<EVP_MD_CTX, void (*)(EVP_MD_CTX*)> context(
      EVP_MD_CTX_new(), EVP_MD_CTX_free);
  if (!file || !context || EVP_DigestInit_ex(context.get(), EVP_sha256(), nullptr) != 1) return "";
  std::vector<char> bytes(1 << 20);
  while (file) {
    file.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    if (file.bad()) return "";
    EVP_DigestUpdate(context.get(), bytes.data(), static_cast<size_t>(file.gcount()));
  }
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned length = 0;
  if (EVP_DigestFinal_ex(context.get(), digest, &length) != 1) return "";
  std::string text;
  for (unsigned i = 0; i < length; ++i) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", digest[i]);
    text += digits;
  }
  return text;
}

}  // namespace dtrun::launcher

int main() {
  if (isatty(STDIN_FILENO) != 0) {
    std::fputs("dtrun: dtrun_probe is started by dtrun doctor, not by hand\n", stderr);
    return static_cast<int>(dtrun::launcher::ExitCode::kUsage);
  }
  try {
    return dtrun::launcher::Main();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "dtrun_probe: %s\n", error.what());
    return static_cast<int>(dtrun::launcher::ExitCode::kInternal);
  }
}
