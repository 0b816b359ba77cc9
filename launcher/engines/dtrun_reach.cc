// dtrun_reach COMMAND...: what mpirun starts in ssh's place in a job that goes on when it has lost
// a host (--ps). It runs the command, ssh with a host and what to run there.
//
// mpirun takes an ssh that fails for a daemon that has never started, and ends the job, unless it
// has seen before that the daemon's connection is gone: when a host is lost, that is chance. So an
// ssh that fails is not told of; dtrun has reached every host before, and sees itself which of them
// do not start their ranks. It is there as long as mpirun is.

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "launcher/support/launch_error.h"

namespace {

// A process that dies with the one that made it.
pid_t Start(char** command) {
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child != 0) return child;
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (getppid() != parent) _exit(1);
  execvp(command[0], command);
  _exit(static_cast<int>(dtrun::launcher::ExitCode::kNotFound));
}

}  // namespace

int main(int argc, char** argv) {
  using dtrun::launcher::ExitCode;
  if (argc < 2) {
    std::fputs("dtrun: dtrun_reach is started by mpirun, not by hand\n", stderr);
    return static_cast<int>(ExitCode::kUsage);
  }
  const pid_t mpirun = getppid();
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  const pid_t command = Start(argv + 1);
  if (command < 0) {
    std::perror("dtrun: dtrun_reach cannot start a process");
    return static_cast<int>(ExitCode::kInternal);
  }
  int status = 0;
  while (waitpid(command, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return 0;
  while (getppid() == mpirun) pause();
  return 0;
}
