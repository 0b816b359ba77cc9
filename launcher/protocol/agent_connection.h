#ifndef DTRUN_LAUNCHER_PROTOCOL_AGENT_CONNECTION_H_
#define DTRUN_LAUNCHER_PROTOCOL_AGENT_CONNECTION_H_

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

#include "launcher/protocol/frame.h"
#include "launcher/support/poller.h"

namespace dtrun::launcher {

/// A connection over which frames come and go, without ever blocking. Owns its descriptors, which
/// may be one and the same.
class FrameStream {
 public:
  /// `on_frame` gets every frame; `on_end` is called once, when the other side is gone or says what
  /// is no frame (`why` says so; "": it closed). Neither is called by a function of this class. The
  /// stream may be destroyed by on_end alone.
  FrameStream(
      Poller& poller, int in, int out, std::function<void(const Frame&)> on_frame,
      std::function<void(const std::string& why)> on_end);
  ~FrameStream();
  FrameStream(const FrameStream&) = delete;
  FrameStream& operator=(const FrameStream&) = delete;

  /// Queues the frame. Dropped once the other side is gone.
  void Send(const Frame& frame);
  /// Bytes that the other side has not taken yet.
  size_t queued() const { return queue_.size(); }
  /// Reads no more until told otherwise: the other side has to wait.
  void SetPaused(bool paused);
  /// Waits, for a second at most, until everything is on its way.
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

// How the wrapper of a rank finds the agent of its host, and how each knows that the other is the
// same user's: an abstract socket, which belongs to no file system and goes with its process.

/// A socket at which the agent of host number `host` of job `job` listens. Throws LaunchError
/// kInternal.
int ListenForRanks(const std::string& job, int host);

/// A connection to that agent. Throws LaunchError kInternal when there is none, or it is not this
/// user's.
int ConnectToAgent(const std::string& job, int host);

/// The process at the other end of a connection, if it is this user's; -1 if not.
pid_t TrustedPeer(int connection);

/// Sends `bytes` with these descriptors, two at most. Throws LaunchError kInternal.
void SendWithFiles(int connection, const std::string& bytes, const std::vector<int>& files);

/// Receives at most `most` bytes, appends the descriptors that come with them. 0: the other side is
/// gone; negative: nothing there yet.
ssize_t ReceiveWithFiles(int connection, char* bytes, size_t most, std::vector<int>& files);

}  // namespace dtrun::launcher

#endif  // DTRUN_LAUNCHER_PROTOCOL_AGENT_CONNECTION_H_
