#ifndef DTRUN_LAUNCHER_DOCTOR_HOST_LOOK_H_
#define DTRUN_LAUNCHER_DOCTOR_HOST_LOOK_H_

#include <chrono>
#include <string>

#include "launcher/doctor/diagnosis.h"
#include "launcher/engines/launch_engine.h"

namespace dtrun::launcher {

/// A host that is to be looked at.
struct Target {
  std::string host;
  int slots;
  bool on_this_machine;
};

/// What is the same for all hosts.
struct LookPlan {
  Reach reach;
  std::string probe;  ///< file of dtrun_probe, the same on all hosts
  ProbeRequest request;
  std::chrono::steady_clock::time_point deadline;
};

/// Finds the host's address, knocks at its ssh port, runs the probe there and asks it; ends with
/// the first of these that fails. Done by the deadline, but for a name service that does not
/// answer. May be called by several threads at once.
HostLook LookAt(const Target& target, const LookPlan& plan);

/// Why the probe, file `probe`, did not greet on `host`: ssh, or the shell there, has written
/// `complaint` to stderr and ended with `exit_code`.
Finding FailureOf(
    const std::string& host, const std::string& probe, const std::string& complaint, int exit_code);

/// The last line says why; those before it are banners.
std::string LastLineOf(const std::string& text);

}  // namespace dtrun::launcher

#endif  // DTRUN_LAUNCHER_DOCTOR_HOST_LOOK_H_
