#ifndef DTRUN_LAUNCHER_JOB_JOB_HOLDER_H_
#define DTRUN_LAUNCHER_JOB_JOB_HOLDER_H_

#include <chrono>
#include <functional>
#include <string>

namespace dtrun::launcher {

/// Becomes the holder of job `name`, runs `work` in a child process, and ends this process when a
/// front has the exit code, or none has come for `grace`. `connection` leads to the first front;
/// others connect to `listener`. Owns both.
[[noreturn]] void HoldJob(
    const std::string& name, std::chrono::seconds grace, int listener, int connection,
    const std::function<int()>& work);

}  // namespace dtrun::launcher

#endif  // DTRUN_LAUNCHER_JOB_JOB_HOLDER_H_
