#ifndef DTRUN_LAUNCHER_DOCTOR_HOST_FACTS_H_
#define DTRUN_LAUNCHER_DOCTOR_HOST_FACTS_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "launcher/networks/network_interfaces.h"

namespace dtrun::launcher {

/// What dtrun asks the probe of a host.
struct ProbeRequest {
  std::string mpirun;        ///< file of this host's; "": there is none
  std::string program;       ///< file of the job's program; "": none was named
  std::string cwd;           ///< where a program without a leading '/' is looked for
  std::string library_path;  ///< LD_LIBRARY_PATH, as the ranks will have it
  int seconds = 60;          ///< the probe ends itself after this time
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(ProbeRequest, mpirun, program, cwd, library_path, seconds)

struct ProgramFacts {
  std::string file;     ///< "": none was asked for
  std::string problem;  ///< why it cannot be run; "": it can
  std::string sha256;   ///< hexadecimal; "": it cannot be read
  std::vector<std::string> missing_libraries;
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(ProgramFacts, file, problem, sha256, missing_libraries)

/// What of dtrun and Open MPI is there.
struct InstallationFacts {
  std::vector<std::string> missing_files;      ///< of dtrun
  std::vector<std::string> missing_libraries;  ///< "libmpi.so.40 (for /opt/lib/libdtrun_mpi.so)"
  std::string mpirun;                          ///< file; "": none
  std::string mpirun_version;                  ///< first line of mpirun --version
  bool has_orted = true;                       ///< beside mpirun: it starts ranks for another host
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(
    InstallationFacts, missing_files, missing_libraries, mpirun, mpirun_version, has_orted)

struct CpuFacts {
  int total = 0;     ///< logical CPUs of the machine that are online
  int allowed = 0;   ///< that a process of this user may run on (cpuset)
  double quota = 0;  ///< CPUs' worth of time of the control group; 0: no limit
  int cores = 0;     ///< that hwloc sees, as all that follows
  int sockets = 0;
  int numa_nodes = 0;
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(CpuFacts, total, allowed, quota, cores, sockets, numa_nodes)

struct GpuFacts {
  std::string name;
  int64_t memory_bytes = 0;
  std::vector<std::string> links;  ///< to every GPU of the host in order: "NVLink", "same switch"
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(GpuFacts, name, memory_bytes, links)

struct MemoryFacts {
  int64_t total_bytes = 0;
  int64_t available_bytes = 0;
  std::string temporary_folder;  ///< where jobs make their folder: $TMPDIR or /tmp
  bool temporary_writable = true;
  int64_t temporary_free_bytes = 0;
  int64_t shared_free_bytes = 0;  ///< in /dev/shm
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(
    MemoryFacts, total_bytes, available_bytes, temporary_folder, temporary_writable,
    temporary_free_bytes, shared_free_bytes)

/// The probe's answer.
struct HostFacts {
  std::string host_name;
  InstallationFacts installation;
  ProgramFacts program;
  CpuFacts cpus;
  MemoryFacts memory;
  std::vector<GpuFacts> gpus;
  std::vector<Interface> interfaces;
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(
    HostFacts, host_name, installation, program, cpus, memory, gpus, interfaces)

/// The first word of the probe's first line; its version follows.
inline constexpr char kProbeGreeting[] = "dtrun_probe";
/// The first word of its answer to the request, which comes at once; its clock follows, in
/// nanoseconds since 1970. The facts, JSON, are the third line.
inline constexpr char kProbeClock[] = "clock";

/// The shared libraries that `file` wants and this system does not have, looked up with
/// LD_LIBRARY_PATH set to `library_path`. Nothing of the file is run: this system's loader is
/// asked, and not the one that the file names. None for what is no dynamically linked file.
std::vector<std::string> MissingLibraries(const std::string& file, const std::string& library_path);

/// What is missing by what the loader says when it lists the libraries of a file.
///   "  libx.so.1 => not found"  ->  {"libx.so.1"}
std::vector<std::string> MissingIn(const std::string& listing);

}  // namespace dtrun::launcher

#endif  // DTRUN_LAUNCHER_DOCTOR_HOST_FACTS_H_
