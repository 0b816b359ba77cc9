#ifndef DTRUN_LAUNCHER_DOCTOR_DIAGNOSIS_H_
#define DTRUN_LAUNCHER_DOCTOR_DIAGNOSIS_H_

#include <chrono>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "launcher/doctor/host_facts.h"
#include "launcher/engines/launch_engine.h"

namespace dtrun::launcher {

/// A problem or a warning about a host.
struct Finding {
  bool stops_job;  ///< false: a warning
  std::string thing;
  std::string found;
  std::string expected;
  std::string advice;  ///< how to fix it; "": clear from the rest

  bool operator==(const Finding&) const = default;
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Finding, stops_job, thing, found, expected, advice)

/// The result of a look at a host.
struct HostLook {
  std::string host;                 ///< name given by the user
  int slots = 0;                    ///< ranks for this host; 0: not given
  std::string address;              ///< address that dtrun used; "": this machine, or none found
  std::vector<Finding> reach = {};  ///< problems on the way to the host
  bool answered = false;            ///< the probe has answered: the next members are set
  HostFacts facts = {};
  double clock_offset_s = 0;  ///< the host's clock minus this machine's
  double clock_uncertainty_s = 0;
};

/// All findings about the host; those that stop a job come first. `here` is this machine, from
/// which jobs start. Other hosts need the same program and, if `needs_open_mpi`, the same Open MPI.
std::vector<Finding> FindingsOf(
    const HostLook& look, const HostLook& here, bool needs_open_mpi = true);

bool StopsJob(const std::vector<Finding>& findings);

/// A look at a host, with its findings.
struct Diagnosis {
  HostLook look;
  std::vector<Finding> findings;
};

/// A heading, a table with a line for each host, a line for each finding, and the conclusion.
/// `here` is this machine. Its Open MPI and program are the reference for the other hosts.
/// `launcher` is the name of the engine that a job would have.
std::string DoctorText(
    const std::vector<Diagnosis>& hosts, const HostLook& here, const std::string& launcher);

/// The same as JSON, with all facts of each host.
std::string DoctorJson(
    const std::vector<Diagnosis>& hosts, const HostLook& here, const std::string& launcher);

/// Whether no host would stop a job.
bool AllReady(const std::vector<Diagnosis>& hosts);

/// A host to look at.
struct Target {
  std::string host;
  int slots;
  bool on_this_machine;
};

/// The parameters that all hosts share.
struct LookPlan {
  Reach reach;
  std::string probe;  ///< path of dtrun_probe, the same on all hosts
  ProbeRequest request;
  std::chrono::steady_clock::time_point deadline;
};

/// Looks at one host: finds its address, connects to its ssh port, starts the probe and requests
/// the facts. The look ends at the first step that fails. It returns by the deadline, unless a name
/// service does not answer. Thread-safe.
HostLook LookAt(const Target& target, const LookPlan& plan);

/// Why the probe, the file `probe` on `host`, sent no greeting. ssh or the shell there wrote
/// `complaint` to stderr and ended with `exit_code`.
Finding FailureOf(
    const std::string& host, const std::string& probe, const std::string& complaint, int exit_code);

/// The last line of `text`. In ssh's messages, the last line gives the reason; the lines before it
/// are banners.
std::string LastLineOf(const std::string& text);

}  // namespace dtrun::launcher

#endif  // DTRUN_LAUNCHER_DOCTOR_DIAGNOSIS_H_
