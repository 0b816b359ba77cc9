#ifndef DTRUN_OPS_BOOTSTRAP_LOCAL_SOCKET_H_
#define DTRUN_OPS_BOOTSTRAP_LOCAL_SOCKET_H_

#include <sys/socket.h>
#include <sys/types.h>
#include <sys/un.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "ops/bootstrap/segment.h"

namespace dtrun::ops {

// Unix sockets with names in the abstract namespace. Such a name disappears with the process that
// bound it, and belongs to one network namespace.

using Deadline = std::chrono::steady_clock::time_point;

class LocalAddress {
 public:
  /// `name` has at most 100 bytes.
  explicit LocalAddress(const std::string& name);

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address_); }
  socklen_t length() const { return length_; }

 private:
  sockaddr_un address_{};
  socklen_t length_;
};

/// The process id of the other end, if that process belongs to this user. Otherwise nullopt.
std::optional<pid_t> TrustedPeer(int socket);

/// Waits until poll reports one of `events` on `fd`, or until `fd` is broken. Returns false if the
/// deadline passes first. Throws Error kSystem.
bool AwaitReady(int fd, short events, Deadline deadline);

/// One message on a stream: its kind, a number whose meaning depends on the kind, and bytes.
struct LocalFrame {
  uint32_t kind = 0;
  int32_t number = 0;
  std::string bytes = {};
};

/// Reads frames from a stream, as their bytes arrive. Checks lengths before it allocates memory.
class LocalFrameReader {
 public:
  explicit LocalFrameReader(uint64_t most_bytes) : most_bytes_(most_bytes) {}

  enum class State {
    kPartial,  ///< the next frame is not complete
    kWhole,    ///< `frame()` is complete; the next Read continues with the next frame
    kEnded,    ///< the other end is closed
  };
  /// Reads the available bytes of the non-blocking `socket`. Throws Error kSystem, also for a frame
  /// that is too long and for bytes that are not a frame.
  State Read(int socket);
  LocalFrame& frame() { return frame_; }

 private:
  uint64_t most_bytes_;
  std::string header_;
  LocalFrame frame_;
  uint64_t missing_ = 0;  // bytes of the frame that have not arrived
  bool whole_ = false;
};

/// Sends the whole frame. Returns false if the other end is gone. Throws Error kTimeout, which
/// names `to`, and kSystem.
bool SendFrame(
    int socket, const LocalFrame& frame, Deadline deadline,
    const std::string& to = "a rank of this host");

}  // namespace dtrun::ops

#endif
