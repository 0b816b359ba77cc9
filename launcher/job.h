#ifndef DTRUN_LAUNCHER_JOB_H_
#define DTRUN_LAUNCHER_JOB_H_

#include <chrono>
#include <string>
#include <vector>

#include "launcher/mpirun.h"
#include "launcher/output_options.h"

namespace dtrun::launcher {

/// All that is known before a job starts.
struct JobPlan {
  MpirunCall call;  ///< without its folder, which the job makes
  std::vector<std::string> environment;
  std::string job;            ///< its random name
  std::string agent;          ///< file of dtrun_agent, the same on all hosts
  std::string flight_record;  ///< file; "": none
  OutputOptions output;
  bool verbose = false;
  std::chrono::seconds start_timeout{60};  ///< for all hosts to answer
  std::chrono::seconds host_timeout{30};   ///< a host not heard of for so long is lost
};

/// Where the job's folder is made: $TMPDIR, or /tmp.
std::string FolderBase();

/// One line on stderr, "dtrun: " in front.
void Say(const std::string& message);

/// Which hosts of the placement are this machine.
std::vector<bool> OnThisMachine(const std::vector<base::HostSlots>& placement);

/// Runs the job to its end, and says how it failed. Returns what dtrun ends with. Throws
/// LaunchError when it cannot start.
int RunJob(JobPlan plan);

}  // namespace dtrun::launcher

#endif
