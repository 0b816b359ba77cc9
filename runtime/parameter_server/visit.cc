#include "runtime/parameter_server/visit.h"

#include <poll.h>

#include <thread>

#include "base/text.h"
#include "base/version.h"
#include "dtrun/error.h"
#include "ops/local_socket.h"
#include "runtime/parameter_server/hmac_sha256.h"

namespace dtrun::runtime {
namespace {

using base::Text;

constexpr std::chrono::milliseconds kRetry{5};  // nobody can wait for a listener to appear

std::string DidNotCome(const ServerJob& job, int server) {
  return Text(
      "parameter server ", server, " (", job.Name(server), ") did not answer in ",
      job.timeout.count(), " s");
}

[[noreturn]] void RefuseProof(const ServerJob& job, int server) {
  throw Error(
      ErrorCode::kSystem, Text(
                              "what listens as parameter server ", server, " (", job.Name(server),
                              ") does not know the secret of this job"));
}

// Both show that they know the secret, by two random texts that never come again.
void ProveEachOther(
    const ServerJob& job, int server, MessageStream& stream, PeerDeadline deadline) {
  const std::string late = DidNotCome(job, server);
  const auto hear = [&](MessageKind kind) {
    if (!AwaitMessage(stream, deadline, late) || stream.header().kind != kind)
      RefuseProof(job, server);
    return stream.text();
  };
  const std::string own = RandomBytes();
  const std::string both = hear(MessageKind::kChallenge) + own;
  stream.Send({.kind = MessageKind::kProof}, own + ClientProof(job.secret, both));
  if (!EqualInConstantTime(hear(MessageKind::kProven), ServerProof(job.secret, both)))
    RefuseProof(job, server);
}

}  // namespace

std::unique_ptr<MessageStream> VisitServer(
    const ServerJob& job, int server, const TcpPlace& place, PeerDeadline deadline,
    const std::function<bool()>& give_up) {
  const bool local = job.shares_host(server);
  for (;;) {
    ops::FileDescriptor socket = local ? ConnectLocally(job.job, server) : ConnectTo(place);
    if (socket.get() >= 0) {
      auto stream = std::make_unique<MessageStream>(std::move(socket));
      if (!local) ProveEachOther(job, server, *stream, deadline);
      return stream;
    }
    if (give_up && give_up()) return nullptr;
    if (std::chrono::steady_clock::now() > deadline)
      throw Error(ErrorCode::kTimeout, DidNotCome(job, server));
    std::this_thread::sleep_for(kRetry);
  }
}

bool AwaitMessage(
    MessageStream& stream, PeerDeadline deadline, const std::string& late,
    const MessageStream::Target& target) {
  for (;;) {
    const bool alive = stream.Flush();
    const MessageStream::State state = stream.Receive(target);
    if (state == MessageStream::State::kWhole) return true;
    if (state == MessageStream::State::kEnded || !alive) return false;
    const short events = stream.sending() ? POLLIN | POLLOUT : POLLIN;
    if (!ops::AwaitReady(stream.socket(), events, deadline)) throw Error(ErrorCode::kTimeout, late);
  }
}

std::string HelloText(const VariableLayout& layout) {
  return Text("dtrun ", base::kVersion, "\n", layout.description);
}

}  // namespace dtrun::runtime
