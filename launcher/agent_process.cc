#include "launcher/agent_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>

#include "launcher/launch_error.h"
#include "launcher/limits.h"

namespace dtrun::launcher {

AgentProcess StartAgentProcess(const std::vector<std::string>& words) {
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
    throw LaunchError(ExitCode::kInternal, "cannot start a process" + ErrorWithLimit(errno));
  close(channel[1]);
  close(complaints[1]);
  return {child, channel[0], complaints[0]};
}

Complaints::Complaints(Poller& poller, int file) : poller_(poller), file_(file) {
  poller_.Watch(file_, POLLIN, [this](short) {
    if (!Read()) poller_.Forget(file_);
  });
}

Complaints::~Complaints() {
  poller_.Forget(file_);
  close(file_);
}

bool Complaints::Read() {
  constexpr size_t kMost = 4096;
  char bytes[1024];
  const ssize_t got = read(file_, bytes, sizeof bytes);
  if (got <= 0) return false;
  text_.append(bytes, static_cast<size_t>(got));
  if (text_.size() > kMost) text_.erase(0, text_.size() - kMost);
  return true;
}

void Complaints::Drain() {
  pollfd rest = {file_, POLLIN, 0};
  while (poll(&rest, 1, 1000) > 0 && Read()) {
  }
}

std::string Complaints::LastLine() const {
  std::string text = text_;
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.pop_back();
  return text.substr(text.rfind('\n') + 1);
}

}  // namespace dtrun::launcher
