#ifndef DTRUN_LAUNCHER_DOCTOR_HOST_FACTS_H_
#define DTRUN_LAUNCHER_DOCTOR_HOST_FACTS_H_

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "launcher/networks/network_survey.h"

namespace dtrun::launcher {

// ---- The probe of a host ------------------------------------------------------------------------

/// dtrun's request to the probe of a host.
struct ProbeRequest {
  std::string mpirun;        ///< path of mpirun on dtrun's machine; "": none
  std::string program;       ///< path of the job's program; "": none given
  std::string cwd;           ///< folder for a program without a leading '/'
  std::string library_path;  ///< LD_LIBRARY_PATH of the ranks
  int seconds = 60;          ///< the probe ends itself after this time
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(ProbeRequest, mpirun, program, cwd, library_path, seconds)

struct ProgramFacts {
  std::string file;     ///< "": no program was requested
  std::string problem;  ///< why it cannot be run; "": it can
  std::string sha256;   ///< hexadecimal; "": it cannot be read
  std::vector<std::string> missing_libraries;
  std::vector<std::string> mpi_libraries = {};  ///< "libmpich.so.12"
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(
    ProgramFacts, file, problem, sha256, missing_libraries, mpi_libraries)

/// The parts of dtrun and Open MPI on a host.
struct InstallationFacts {
  std::vector<std::string> missing_files;      ///< helper programs of dtrun
  std::vector<std::string> missing_libraries;  ///< "libmpi.so.40 (for /opt/lib/libdtrun_mpi.so)"
  std::string mpirun;                          ///< path; "": none
  std::string mpirun_version;                  ///< first line of mpirun --version
  bool has_orted = true;  ///< or prted; beside mpirun, starts ranks for other hosts
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(
    InstallationFacts, missing_files, missing_libraries, mpirun, mpirun_version, has_orted)

struct CpuFacts {
  int total = 0;     ///< logical CPUs that are online
  int allowed = 0;   ///< CPUs that a process of this user may run on (cpuset)
  double quota = 0;  ///< limit of the control group, in CPUs; 0: no limit
  int cores = 0;     ///< cores, sockets and NUMA nodes as hwloc counts them
  int sockets = 0;
  int numa_nodes = 0;
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(CpuFacts, total, allowed, quota, cores, sockets, numa_nodes)

struct GpuFacts {
  std::string name;
  int64_t memory_bytes = 0;
  std::vector<std::string> links;  ///< to each GPU of the host: "NVLink", "one PCIe switch"
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(GpuFacts, name, memory_bytes, links)

struct MemoryFacts {
  int64_t total_bytes = 0;
  int64_t available_bytes = 0;
  std::string temporary_folder;  ///< $TMPDIR or /tmp, where jobs make their folder
  bool temporary_writable = true;
  int64_t temporary_free_bytes = 0;
  int64_t shared_free_bytes = 0;  ///< in /dev/shm
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(
    MemoryFacts, total_bytes, available_bytes, temporary_folder, temporary_writable,
    temporary_free_bytes, shared_free_bytes)

/// The probe's facts about its host.
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

/// The first word of the probe's first line. The probe's version follows.
inline constexpr char kProbeGreeting[] = "dtrun_probe";
/// The first word of the probe's second line, which it sends as soon as it has the request. Its
/// clock follows, in nanoseconds since 1970. The third line holds the facts as JSON.
inline constexpr char kProbeClock[] = "clock";

// ---- Shared libraries ---------------------------------------------------------------------------

/// The list that the loader prints of the shared libraries that `file` needs, looked up with
/// LD_LIBRARY_PATH set to `library_path`. No code of the file runs, because the loader of this
/// program lists the libraries. "" if the file is not a dynamically linked 64-bit ELF file, or if
/// it names another loader.
std::string LibraryList(const std::string& file, const std::string& library_path);

/// The missing libraries in such a list.
///   "  libx.so.1 => not found"  ->  {"libx.so.1"}
std::vector<std::string> MissingIn(const std::string& list);

/// The libraries of an MPI in such a list: libmpi.so.N and libmpich.so.N.
std::vector<std::string> MpiIn(const std::string& list);

// ---- Child processes ----------------------------------------------------------------------------

/// A child process that exchanges lines of text with this process. The child dies with the thread
/// that created it; the destructor kills it. One thread at a time.
class Child {
 public:
  using Clock = std::chrono::steady_clock;

  /// `words[0]` is looked up in PATH. `variables` are added to this process's environment and
  /// replace variables of the same name. A program that cannot be started prints the reason to
  /// stderr and exits with 127. Throws LaunchError kInternal if no process or pipe can be made.
  explicit Child(
      const std::vector<std::string>& words,
      const std::vector<std::pair<std::string, std::string>>& variables = {});
  ~Child();
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  /// Never blocks: text that the child's stdin does not take at once is lost.
  void Write(const std::string& text);
  /// The next line of the child's stdout, without the newline. At `deadline` or at the end of
  /// stdout: the unfinished line, or nullopt if there is none. Also nullopt if a line is longer
  /// than 1 MiB.
  std::optional<std::string> ReadLine(Clock::time_point deadline);
  /// Closes the child's stdin, reads the remaining output and waits for the end. Returns the exit
  /// code, or 128 + signal; nullopt: the child still runs at `deadline`.
  std::optional<int> Wait(Clock::time_point deadline);

  /// The last 4 KiB of the child's stderr so far.
  const std::string& complaint() const { return complaint_; }

 private:
  bool ReadSome(Clock::time_point deadline);

  pid_t process_ = -1;
  int in_ = -1, out_ = -1, err_ = -1;
  int end_ = -1;  // pidfd
  std::string line_, complaint_;
};

/// The output and the end of a program.
struct Said {
  std::string out, err;
  std::optional<int> exit_code;  ///< nullopt: it was killed at the deadline
};
/// Runs a program to its end, or kills it at `deadline`.
Said RunToEnd(
    const std::vector<std::string>& words, Child::Clock::time_point deadline,
    const std::vector<std::pair<std::string, std::string>>& variables = {});

}  // namespace dtrun::launcher

#endif  // DTRUN_LAUNCHER_DOCTOR_HOST_FACTS_H_
