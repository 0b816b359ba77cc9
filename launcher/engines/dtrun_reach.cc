// dtrun_reach COMMAND...: mpirun starts this program in place of ssh in a job that survives a lost
// host (--ps). It runs COMMAND, an ssh with its host and remote command.
//
// If an ssh fails, mpirun assumes that the daemon never started, and ends the job. mpirun spares
// the job only if it has already seen the daemon's connection end. After the loss of a host, the
// order of the two is random. dtrun_reach therefore hides a failed ssh and stays until mpirun ends.
// dtrun has reached every host before, and detects ranks that do not start.

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "launcher/support/launch_error.h"

namespace {

// Starts a process that dies with this one.
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
