#ifndef DTRUN_OPS_BOOTSTRAP_LOCAL_SOCKET_H_
#define DTRUN_OPS_BOOTSTRAP_LOCAL_SOCKET_H_

#include <sys/socket.h>
#include <sys/types.h>
#include <sys/un.h>

#include <chrono>
#include <functional>
#include <optional>
#include <string>

#include "dtrun/error.h"

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

/// While it lives, waits of this thread during Init end with the error that `why` returns, as soon
/// as it returns one. `why` is called often.
class AbandonScope {
 public:
  using Why = std::function<std::optional<Error>()>;

  explicit AbandonScope(Why why);
  ~AbandonScope();
  AbandonScope(const AbandonScope&) = delete;
  AbandonScope& operator=(const AbandonScope&) = delete;

 private:
  Why why_;
  const Why* outer_;
};

/// The milliseconds for which a wait during Init may sleep before it calls this function again. 0:
/// the deadline has passed. Throws the error of the innermost AbandonScope.
int MostOfWait(Deadline deadline);

/// Waits until poll reports one of `events` on `fd`, or until `fd` is broken. Returns false if the
/// deadline passes first. Throws Error kSystem, and the error of an AbandonScope.
bool AwaitReady(int fd, short events, Deadline deadline);

}  // namespace dtrun::ops

#endif
