#include "launcher/agent_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/text.h"
#include "launcher/launch_error.h"

namespace dtrun::launcher {

using base::Text;

AgentProcess StartAgent(const std::vector<std::string>& words) {
  std::vector<char*> argv;
  for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  int channel[2], complaints[2];
  const bool connected = socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, channel) == 0 &&
                         pipe2(complaints, O_CLOEXEC) == 0;
  const pid_t child = connected ? fork() : -1;
  if (child == 0) {
    setsid();  // the terminal's Ctrl-C is dtrun's to handle
    dup2(channel[1], STDIN_FILENO);
    dup2(channel[1], STDOUT_FILENO);
    dup2(complaints[1], STDERR_FILENO);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, nullptr);
    execvp(argv[0], argv.data());
    _exit(127);
  }
  if (child < 0)
    throw LaunchError(ExitCode::kInternal, Text("cannot start a process: ", std::strerror(errno)));
  close(channel[1]);
  close(complaints[1]);
  return {child, channel[0], complaints[0]};
}

}  // namespace dtrun::launcher
