#ifndef DTRUN_OPS_BOOTSTRAP_LOCAL_SOCKET_H_
#define DTRUN_OPS_BOOTSTRAP_LOCAL_SOCKET_H_

#include <sys/socket.h>
#include <sys/types.h>
#include <sys/un.h>

#include <chrono>
#include <optional>
#include <string>

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

}  // namespace dtrun::ops

#endif
