#include "runtime/parameter_server/server_job.h"

#include <fcntl.h>
#include <sys/socket.h>

#include <cerrno>
#include <thread>

#include "base/hmac_sha256.h"
#include "base/text.h"
#include "dtrun/error.h"
#include "ops/bootstrap/local_socket.h"

namespace dtrun::runtime {

std::string ServerJob::Name(int of_rank) const {
  const std::string& host =
      host_names[static_cast<size_t>(host_of_rank[static_cast<size_t>(of_rank)])];
  return base::Text("rank ", of_rank, " on ", host);
}

void ThrowPeerLost(const std::string& text) {
  constexpr std::chrono::milliseconds kCulpritFirst{300};
  std::this_thread::sleep_for(kCulpritFirst);
  throw Error(
      ErrorCode::kPeerLost,
      text + "; start the job again (a job that saves checkpoints continues from the newest)");
}

void ThrowServerLost(const ServerJob& job, int server) {
  ThrowPeerLost(base::Text(
      "parameter server ", server, " (", job.Name(server), ") is lost with its variables"));
}

namespace {

ops::LocalAddress LocalPlace(const std::string& job, int server) {
  return ops::LocalAddress(base::Text("dtrun.", job.substr(0, 64), ".ps.", server));
}

ops::FileDescriptor NewSocket() {
  ops::FileDescriptor made(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (made.get() < 0) ops::ThrowErrno("socket");
  return made;
}

void SetNonBlocking(int socket) { ::fcntl(socket, F_SETFL, O_NONBLOCK); }

}  // namespace

ops::FileDescriptor ListenLocally(const std::string& job, int server) {
  ops::FileDescriptor listener = NewSocket();
  const ops::LocalAddress place = LocalPlace(job, server);
  if (::bind(listener.get(), place.get(), place.length()) != 0 ||
      ::listen(listener.get(), SOMAXCONN) != 0)
    ops::ThrowErrno(base::Text("bind of parameter server ", server));
  SetNonBlocking(listener.get());
  return listener;
}

ops::FileDescriptor ConnectLocally(const std::string& job, int server) {
  ops::FileDescriptor socket = NewSocket();
  const ops::LocalAddress place = LocalPlace(job, server);
  if (::connect(socket.get(), place.get(), place.length()) != 0) {
    if (errno == ECONNREFUSED || errno == EINTR || errno == EAGAIN) return ops::FileDescriptor();
    ops::ThrowErrno(base::Text("connect to parameter server ", server));
  }
  if (!ops::TrustedPeer(socket.get()))
    throw Error(
        ErrorCode::kSystem, "a process of another user has taken a parameter server's place");
  SetNonBlocking(socket.get());
  return socket;
}

ops::FileDescriptor AcceptFrom(int listener, bool local) {
  if (!local) return ops::AcceptTcp(listener);
  ops::FileDescriptor socket(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (socket.get() < 0 || !ops::TrustedPeer(socket.get())) return ops::FileDescriptor();
  return socket;
}

std::string ClientProof(const std::string& secret, const std::string& both) {
  return base::HmacSha256(secret, "dtrun parameter server: a rank" + both);
}

std::string ServerProof(const std::string& secret, const std::string& both) {
  return base::HmacSha256(secret, "dtrun parameter server: a server" + both);
}

}  // namespace dtrun::runtime
