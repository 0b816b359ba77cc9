#ifndef DTRUN_LAUNCHER_FRAME_STREAM_H_
#define DTRUN_LAUNCHER_FRAME_STREAM_H_

#include <functional>
#include <string>

#include "launcher/frame.h"
#include "launcher/poller.h"

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

}  // namespace dtrun::launcher

#endif
