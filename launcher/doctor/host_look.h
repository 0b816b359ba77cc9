#ifndef DTRUN_LAUNCHER_DOCTOR_HOST_LOOK_H_
#define DTRUN_LAUNCHER_DOCTOR_HOST_LOOK_H_

#include <chrono>
#include <string>

#include "launcher/doctor/diagnosis.h"
#include "launcher/engines/launch_engine.h"

namespace dtrun::launcher {

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

#endif  // DTRUN_LAUNCHER_DOCTOR_HOST_LOOK_H_
