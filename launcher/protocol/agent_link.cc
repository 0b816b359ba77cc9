// An agent is started with a socket as its stdin and stdout, and a pipe as its stderr. In a tree,
// an agent starts others. A frame for one of them is wrapped once for each agent on its way: kVia
// with the number of the next host. Frames from agents come as bundles (launcher/agent/relay.h).

#include "launcher/protocol/agent_link.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <utility>

#include "launcher/support/launch_error.h"

namespace dtrun::launcher {
namespace {

// How long an agent may take to end after its connection is closed.
constexpr std::chrono::seconds kAgentEnds{3};

}  // namespace

PipedProcess StartPiped(const std::vector<std::string>& words) {
  std::vector<char*> argv;
  for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  int channel[2] = {-1, -1}, complaints[2] = {-1, -1};
  const bool connected = socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, channel) == 0 &&
                         pipe2(complaints, O_CLOEXEC) == 0;
  const pid_t child = connected ? fork() : -1;
  if (child == 0) {
    setsid();  // dtrun handles the terminal's Ctrl-C
    dup2(channel[1], STDIN_FILENO);
    dup2(channel[1], STDOUT_FILENO);
    dup2(complaints[1], STDERR_FILENO);
    // An agent ignores signals that end a remote shell.
    for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE, SIGUSR1, SIGUSR2})
      ::signal(signal, SIG_DFL);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, nullptr);
    execvp(argv[0], argv.data());
    _exit(127);
  }
  if (child < 0) {
    const std::string error = ErrorWithLimit(errno);
    for (const int file : {channel[0], channel[1], complaints[0], complaints[1]})
      if (file >= 0) close(file);
    throw LaunchError(ExitCode::kInternal, "cannot start a process" + error);
  }
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

AgentProcess::AgentProcess(
    Poller& poller, const std::vector<std::string>& words, OnFrame on_frame, OnLinkEnd on_end) {
  const PipedProcess child = StartPiped(words);
  process_ = child.process;
  complaints_ = std::make_unique<Complaints>(poller, child.complaints);
  stream_ = std::make_unique<FrameStream>(
      poller, child.channel, child.channel,
      [this, on_frame = std::move(on_frame)](const Frame& frame) {
        answered_ = true;
        on_frame(frame);
      },
      [this, on_end = std::move(on_end)](const std::string& why) {
        ended_ = true;
        if (!answered_) complaints_->Drain();
        const OnLinkEnd call = on_end;  // it may destroy this object
        call({why, complaints_->LastLine()});
      });
}

AgentProcess::~AgentProcess() {
  stream_.reset();
  complaints_.reset();
  if (kill_at_end_) kill(-process_, SIGKILL);
  AwaitChild(process_, kAgentEnds);
}

void AgentProcess::Look() {
  if (!ended_) stopped_.Look(process_);
}

// ---- The tree of agents -------------------------------------------------------------------------

AgentTree::AgentTree(const std::vector<int>& hosts, size_t fanout) {
  const auto last = std::max_element(hosts.begin(), hosts.end());
  places_.resize(last == hosts.end() ? 0 : static_cast<size_t>(*last) + 1);
  if (fanout > 0) Deal(hosts, fanout, -1);
}

void AgentTree::Deal(const std::vector<int>& hosts, size_t fanout, int above) {
  for (const Branch<int>& branch : DealToBranches(hosts, fanout)) {
    places_[static_cast<size_t>(branch.head)] = {above, branch.below};
    Deal(branch.below, fanout, branch.head);
  }
}

int AgentTree::above(int host) const {
  const auto i = static_cast<size_t>(host);
  return i < places_.size() ? places_[i].above : -1;
}

std::vector<int> AgentTree::below(int host) const {
  const auto i = static_cast<size_t>(host);
  return i < places_.size() ? places_[i].below : std::vector<int>();
}

void AgentTree::Detach(int host) {
  for (int up = above(host); up >= 0; up = above(up)) {
    std::vector<int>& hosts = places_[static_cast<size_t>(up)].below;
    const std::vector<int> moved = below(host);
    std::erase_if(hosts, [&](int other) {
      return other == host || std::find(moved.begin(), moved.end(), other) != moved.end();
    });
  }
  if (static_cast<size_t>(host) < places_.size()) places_[static_cast<size_t>(host)].above = -1;
}

AgentTree::Routed AgentTree::Route(int host, Frame frame) const {
  int to = host;
  for (; above(to) >= 0; to = above(to)) frame = {FrameType::kVia, to, Encode(frame)};
  return {to, std::move(frame)};
}

std::vector<Frame> FramesIn(const std::string& bundle) {
  FrameReader reader;
  reader.Feed(bundle.data(), bundle.size());
  std::vector<Frame> frames;
  while (std::optional<Frame> frame = reader.Next()) frames.push_back(*std::move(frame));
  if (reader.in_frame())
    throw LaunchError(ExitCode::kInternal, "found a part of a message in a bundle of messages");
  return frames;
}

}  // namespace dtrun::launcher
