#ifndef DTRUN_LAUNCHER_JOB_JOB_FRONT_H_
#define DTRUN_LAUNCHER_JOB_JOB_FRONT_H_

#include <chrono>
#include <functional>
#include <string>

namespace dtrun::launcher {

// A job that outlives the dtrun that the user has started (--orphan-grace). job_holder.cc explains
// its processes.

/// Runs `work` in a process of its own, and waits for its exit code, which is the result. `work`
/// throws nothing. If this process dies, the job goes on for `grace`. Until then, AttachToJob may
/// take this process's place. After that, the job ends as after SIGTERM. The program must have one
/// thread and no children. Throws LaunchError kInternal.
int RunHeld(std::chrono::seconds grace, const std::function<int()>& work);

/// Takes the place of the lost dtrun of job `name`: shows the output since the loss, passes signals
/// on, and returns the exit code of the job. Throws LaunchError kUnavailable if this user has no
/// such job on this host, or if its dtrun runs.
int AttachToJob(const std::string& name);

}  // namespace dtrun::launcher

#endif  // DTRUN_LAUNCHER_JOB_JOB_FRONT_H_
