#ifndef DTRUN_LAUNCHER_PROTOCOL_AGENT_LINK_H_
#define DTRUN_LAUNCHER_PROTOCOL_AGENT_LINK_H_

#include <sys/types.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "launcher/protocol/frame.h"
#include "launcher/support/host_system.h"
#include "launcher/support/poller.h"

namespace dtrun::launcher {

// ---- A link to an agent -------------------------------------------------------------------------

/// How a link to an agent has ended.
struct LinkEnd {
  std::string why = {};    ///< the error of the connection; "": it was closed
  std::string words = {};  ///< the last line on the agent's stderr
};

/// The connection to an agent, on the side of the process that has started it.
class AgentLink {
 public:
  virtual ~AgentLink() = default;
  virtual void Send(const Frame& frame) = 0;
  /// While paused, no frame is taken from the agent.
  virtual void SetPaused(bool paused) = 0;
  /// Call it now and then: continues a process that a signal has stopped.
  virtual void Look() = 0;
};

using OnFrame = std::function<void(const Frame&)>;
using OnLinkEnd = std::function<void(const LinkEnd&)>;
/// Starts an agent with this command. `on_end` is called once, after the last frame. The link may
/// be destroyed in it.
using StartAgent = std::function<std::unique_ptr<AgentLink>(
    const std::vector<std::string>& words, OnFrame on_frame, OnLinkEnd on_end)>;

/// A child process with connections to its streams.
struct PipedProcess {
  pid_t process;
  int channel;     ///< a socket: the process's stdin and stdout
  int complaints;  ///< a pipe: the process's stderr
};

/// Starts a command in a new session. Throws LaunchError kInternal.
PipedProcess StartPiped(const std::vector<std::string>& words);

/// The stderr of a process.
class Complaints {
 public:
  /// Owns `file`, the read end of the pipe.
  Complaints(Poller& poller, int file);
  ~Complaints();
  Complaints(const Complaints&) = delete;
  Complaints& operator=(const Complaints&) = delete;

  /// The last line, which says why the process ended: the lines before it are banners. "": no
  /// output.
  std::string LastLine() const;
  /// Reads to the end, or until no bytes have come for a second.
  void Drain();

 private:
  bool Read();

  Poller& poller_;
  int file_;
  std::string text_;
};

/// An agent as a child process, in a session of its own, or the remote shell that leads to it.
class AgentProcess final : public AgentLink {
 public:
  /// Throws LaunchError kInternal.
  AgentProcess(
      Poller& poller, const std::vector<std::string>& words, OnFrame on_frame, OnLinkEnd on_end);
  /// Closes the connection, which makes the agent end, and waits for the process.
  ~AgentProcess() override;

  void Send(const Frame& frame) override { stream_->Send(frame); }
  void SetPaused(bool paused) override { stream_->SetPaused(paused); }
  void Look() override;
  /// FrameStream::SetWindow.
  void SetWindow() { stream_->SetWindow(); }
  /// The last line on the agent's stderr so far.
  std::string words() const { return complaints_->LastLine(); }
  /// The destructor kills the process: a remote shell may not notice that its connection is closed.
  void KillAtEnd() { kill_at_end_ = true; }
  pid_t process() const { return process_; }

 private:
  pid_t process_ = -1;
  bool answered_ = false;  // a frame has come
  bool ended_ = false, kill_at_end_ = false;
  StoppedHelper stopped_ = {};
  std::unique_ptr<Complaints> complaints_;
  std::unique_ptr<FrameStream> stream_;
};

// ---- The tree of agents -------------------------------------------------------------------------

/// The first of some items, and the items below it.
template <typename T>
struct Branch {
  T head;
  std::vector<T> below = {};
};

/// Deals `items` to at most `most` branches (0: any number): the first items are the heads, and the
/// others come below them in turn.
template <typename T>
std::vector<Branch<T>> DealToBranches(const std::vector<T>& items, size_t most) {
  std::vector<Branch<T>> branches;
  for (size_t i = 0; i < items.size(); ++i) {
    if (most == 0 || i < most)
      branches.push_back({items[i]});
    else
      branches[i % most].below.push_back(items[i]);
  }
  return branches;
}

/// Which agent starts which: dtrun starts up to `fanout` agents, and each agent up to `fanout` of
/// those below it. Frames to and from an agent pass through the agents above it. Pure.
class AgentTree {
 public:
  /// A tree of all `hosts`; `fanout` 0: dtrun starts all agents.
  AgentTree(const std::vector<int>& hosts, size_t fanout);

  /// The host whose agent has started the agent of `host`; -1: dtrun has.
  int above(int host) const;
  /// The hosts below `host`, at any depth.
  std::vector<int> below(int host) const;
  /// dtrun has started the agent of `host` itself. The hosts below it stay there.
  void Detach(int host);

  /// A frame for the agent of `host`, as it is sent to the agent of `to`, which is `host` or above
  /// it.
  struct Routed {
    int to;
    Frame frame;
  };
  Routed Route(int host, Frame frame) const;

 private:
  void Deal(const std::vector<int>& hosts, size_t fanout, int above);

  struct Place {
    int above = -1;
    std::vector<int> below = {};
  };
  std::vector<Place> places_;  // by host
};

/// The frames in the body of a kBundle. Throws LaunchError kInternal.
std::vector<Frame> FramesIn(const std::string& bundle);

}  // namespace dtrun::launcher

#endif  // DTRUN_LAUNCHER_PROTOCOL_AGENT_LINK_H_
