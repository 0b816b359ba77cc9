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

// Unix sockets with a name in the abstract namespace: it is gone with the process that bound it,
// and scoped to the network namespace.

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

/// Who is at the other end: its process id if it is one of this user, else nothing.
std::optional<pid_t> TrustedPeer(int socket);

/// Waits until `events` of poll can be had of `fd`, or it is broken; false when the deadline came
/// first. Throws Error kSystem.
bool AwaitReady(int fd, short events, Deadline deadline);

/// One message on a stream: what it is, a number whose meaning depends on that, and bytes.
struct LocalFrame {
  uint32_t kind = 0;
  int32_t number = 0;
  std::string bytes = {};
};

/// What of a stream has come. Lengths are checked before anything is allocated.
class LocalFrameReader {
 public:
  explicit LocalFrameReader(uint64_t most_bytes) : most_bytes_(most_bytes) {}

  enum class State {
    kPartial,  ///< the next frame has not come as a whole
    kWhole,    ///< `frame()` has come; the next call of Read goes on with the next one
    kEnded,    ///< the other end is closed
  };
  /// Reads what is there of the non-blocking `socket`. Throws Error kSystem, also for what is
  /// longer than allowed, or no frame.
  State Read(int socket);
  LocalFrame& frame() { return frame_; }

 private:
  uint64_t most_bytes_;
  std::string header_;
  LocalFrame frame_;
  uint64_t missing_ = 0;  // bytes of the frame
  bool whole_ = false;
};

/// Sends all of it; false when the other end is gone. Throws Error kTimeout, which names `to`, and
/// kSystem.
bool SendFrame(
    int socket, const LocalFrame& frame, Deadline deadline,
    const std::string& to = "a rank of this host");

}  // namespace dtrun::ops

#endif
