#ifndef DTRUN_LAUNCHER_PROTOCOL_AGENT_CONNECTION_H_
#define DTRUN_LAUNCHER_PROTOCOL_AGENT_CONNECTION_H_

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

#include "launcher/protocol/frame.h"
#include "launcher/support/poller.h"

namespace dtrun::launcher {

/// A non-blocking connection that carries frames. Owns its descriptors, which may be the same one.
class FrameStream {
 public:
  /// `on_frame` gets every frame. `on_end` is called once, when the other side is gone or sends
  /// bytes that are no frame. `why` is the error; "" for a closed connection. Both are called while
  /// the poller waits; Flush may also call `on_end`. The stream may be destroyed in `on_end`, not
  /// in `on_frame`.
  FrameStream(
      Poller& poller, int in, int out, std::function<void(const Frame&)> on_frame,
      std::function<void(const std::string& why)> on_end);
  ~FrameStream();
  FrameStream(const FrameStream&) = delete;
  FrameStream& operator=(const FrameStream&) = delete;

  /// Queues the frame. Drops it if the other side is gone.
  void Send(const Frame& frame);
  /// The number of queued bytes that the other side has not taken.
  size_t queued() const { return queue_.size(); }
  /// While paused, the stream reads nothing, so the other side has to wait.
  void SetPaused(bool paused);
  /// Writes the queue. Gives up if the other side takes no bytes for a second.
  void Flush();

 private:
  void Update();
  void Read();
  void Write();
  void End(const std::string& why);

  Poller& poller_;
  int in_, out_;
  std::function<void(const Frame&)> on_frame_;
  std::function<void(const std::string&)> on_end_;
  FrameReader reader_;
  std::string queue_;
  bool paused_ = false, ended_ = false;
};

// The wrapper of a rank connects to the agent of its host through an abstract Unix socket. Such a
// socket has no file and vanishes with its process. Both sides check that the other process belongs
// to the same user.

/// A listening socket for the agent of host number `host` of job `job`. Throws LaunchError
/// kInternal.
int ListenForRanks(const std::string& job, int host);

/// A connection to that agent. Throws LaunchError kInternal if there is no agent, or if it belongs
/// to another user.
int ConnectToAgent(const std::string& job, int host);

/// The process at the other end of a connection; -1: it belongs to another user.
pid_t TrustedPeer(int connection);

/// Sends `bytes` with at most two descriptors. Throws LaunchError kInternal.
void SendWithFiles(int connection, const std::string& bytes, const std::vector<int>& files);

/// Receives at most `most` bytes and appends the descriptors that come with them. 0: the other side
/// is gone; negative: no data yet.
ssize_t ReceiveWithFiles(int connection, char* bytes, size_t most, std::vector<int>& files);

}  // namespace dtrun::launcher

#endif  // DTRUN_LAUNCHER_PROTOCOL_AGENT_CONNECTION_H_
