// Rank 0 listens and is the hub. It sends a challenge to each process that connects. The process
// answers with its rank, the number of ranks, the digest of the job's name, its own random bytes
// and a proof. The proof is an HMAC, keyed with the secret, over the random bytes of both sides and
// all claims. So nobody can alter an answer, or repeat it on another connection. The hub answers
// with its own proof. Both sides derive the keys of the connection from the same bytes.

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <set>

#include "base/hmac_sha256.h"
#include "base/text.h"
#include "dtrun/error.h"
#include "ops/bootstrap/bootstrap.h"
#include "ops/bootstrap/star_bootstrap.h"
#include "ops/bootstrap/tcp_socket.h"

namespace dtrun::ops {
namespace {

using base::Text;
using Clock = std::chrono::steady_clock;

constexpr size_t kRandomBytes = 32, kDigestBytes = 32, kProofBytes = 32;
constexpr size_t kClaimBytes = sizeof(int32_t) + kDigestBytes + kRandomBytes;
constexpr size_t kGreetingBytes = kClaimBytes + kProofBytes;
constexpr uint64_t kMostOfHub = 64 << 10;  // of a frame of an unproven hub, which may be an error
constexpr size_t kMostLines = 256;         // about refused connections, one per address
constexpr std::chrono::seconds kGreetingTime{10};  // of a process that has connected
constexpr std::chrono::seconds kConnectTime{5};    // of one attempt
constexpr std::chrono::milliseconds kFirstRetry{1}, kLongestRetry{200};

std::string BytesOfNumber(int32_t number) {
  return std::string(reinterpret_cast<const char*>(&number), sizeof number);
}

// The bytes of a greeting before the proof.
std::string ClaimsOf(const StoreMeeting& meeting, const std::string& random) {
  return BytesOfNumber(meeting.size) + base::Sha256(meeting.name) + random;
}

// The bytes that a proof covers: the hub's random bytes and everything that a rank claims.
std::string Covered(const std::string& challenge, int32_t rank, const std::string& claims) {
  return challenge + BytesOfNumber(rank) + claims;
}

enum class ProofOf { kRank, kHub, kKeyOfRank, kKeyOfHub };

std::string Prove(const std::string& secret, ProofOf what, const std::string& covered) {
  if (secret.empty()) return std::string(kProofBytes, '\0');
  return base::HmacSha256(secret, Text("dtrun store ", static_cast<int>(what), ": ") + covered);
}

StarSettings SettingsOf(const StoreMeeting& meeting) {
  return {meeting.rank,          meeting.size, meeting.place.Name(), meeting.timeout,
          meeting.warning_after, meeting.warn, meeting.most_bytes,   meeting.most_bytes};
}

void CheckMeeting(const StoreMeeting& meeting) {
  if (meeting.rank < 0 || meeting.rank >= meeting.size)
    throw Error(
        ErrorCode::kInvalidArgument,
        Text("rank ", meeting.rank, " of ", meeting.size, "; expected a rank below the size"));
  const int least = meeting.rank == 0 && meeting.listening ? 0 : 1;
  if (meeting.place.port < least || meeting.place.port > 65535)
    throw Error(
        ErrorCode::kInvalidArgument, Text(
                                         "the address of rank 0 has the port ", meeting.place.port,
                                         "; expected a port from 1 to 65535"));
}

// ---- Rank 0 -------------------------------------------------------------------------------------

class StoreDoor : public Door {
 public:
  explicit StoreDoor(const StoreMeeting& meeting) : meeting_(meeting) {}

  bool Accept(int listener, std::list<Stranger>& strangers) override {
    FileDescriptor socket = AcceptTcp(listener);
    if (socket.get() < 0) {
      // Other errors belong to a connection that has already ended.
      if (errno != EMFILE && errno != ENFILE) return false;
      if (strangers.empty()) ThrowErrno("accept of a rank");
      strangers.pop_front();
      return true;
    }
    const TcpPlace peer = PeerOf(socket.get());
    if (peer.host.empty()) return true;
    Stranger stranger{
        FrameStream(std::move(socket), kGreetingBytes, peer.Name()), peer.Name(),
        Clock::now() + kGreetingTime, peer.host, RandomBytes()};
    if (meeting_.secret.empty() && !IsTrusted(peer.host, meeting_.trusted)) {
      Refuse(
          stranger, ErrorCode::kUnavailable,
          "the address is on no trusted network; expected a secret or a trusted network");
      return true;
    }
    stranger.stream.Send({FrameKind::kChallenge, 0, stranger.challenge});
    strangers.push_back(std::move(stranger));
    return true;
  }

  std::optional<RankClaim> Check(Stranger& stranger, const Frame& greeting) override {
    if (greeting.kind != FrameKind::kGreeting || greeting.bytes.size() != kGreetingBytes) {
      Drop(stranger, "the process sent no greeting of a rank");
      return std::nullopt;
    }
    const std::string claims = greeting.bytes.substr(0, kClaimBytes);
    const std::string covered = Covered(stranger.challenge, greeting.number, claims);
    const auto prove = [&](ProofOf what) { return Prove(meeting_.secret, what, covered); };
    if (!base::EqualInConstantTime(greeting.bytes.substr(kClaimBytes), prove(ProofOf::kRank))) {
      Refuse(
          stranger, ErrorCode::kUnavailable,
          "the process does not know the secret of this job; expected the same secret on all "
          "ranks");
      return std::nullopt;
    }
    if (claims.substr(sizeof(int32_t), kDigestBytes) != base::Sha256(meeting_.name)) {
      Refuse(
          stranger, ErrorCode::kMismatch,
          "the process belongs to another job; expected another port for each job");
      return std::nullopt;
    }
    stranger.stream.Send({FrameKind::kProven, 0, prove(ProofOf::kHub)});
    if (!meeting_.secret.empty())
      stranger.stream.Seal(prove(ProofOf::kKeyOfHub), prove(ProofOf::kKeyOfRank));
    int32_t size = 0;
    claims.copy(reinterpret_cast<char*>(&size), sizeof size);
    return RankClaim{greeting.number, Text(size)};
  }

  void Drop(const Stranger& stranger, const std::string& reason) override {
    if (!meeting_.warn || told_.size() >= kMostLines || !told_.insert(stranger.address).second)
      return;
    meeting_.warn(Text("closed a connection from ", stranger.place, ": ", reason));
  }

 private:
  // Also tells the process. Such a small frame always fits into the buffer of a new socket.
  void Refuse(Stranger& stranger, ErrorCode code, const std::string& reason) {
    Drop(stranger, reason);
    stranger.stream.Send(
        {FrameKind::kError, static_cast<int32_t>(code),
         Text(
             NameAt(0, meeting_.place.Name()), " refused the connection from ", stranger.place,
             ": ", reason)});
    try {
      stranger.stream.Flush();
    } catch (const Error&) {  // the process has ended
    }
  }

  const StoreMeeting& meeting_;
  std::set<std::string> told_;  // addresses
};

// ---- The other ranks ----------------------------------------------------------------------------

// Receives a frame of a process that has not proven to be rank 0. Returns kError if the process has
// closed the connection.
Frame ReceiveUnproven(Spoke& spoke, Deadline deadline, FrameKind kind) {
  std::optional<Frame> frame;
  try {
    frame = spoke.Receive(deadline);
  } catch (const Error& error) {
    std::string text = error.what();
    for (char& c : text)
      if (static_cast<unsigned char>(c) < ' ') c = '?';
    const bool known =
        error.code() >= ErrorCode::kInvalidArgument && error.code() <= ErrorCode::kSystem;
    throw Error(known ? error.code() : ErrorCode::kSystem, text);
  }
  if (!frame) return {FrameKind::kError};
  if (frame->kind != kind || frame->bytes.size() != kRandomBytes)
    throw Error(
        ErrorCode::kSystem, Text("another program listens at the address of ", spoke.hub().peer()));
  return std::move(*frame);
}

// Returns null if the other end closes the connection before a proof. The other end may be a
// process that ends, or a rank 0 that has too many connections.
std::unique_ptr<Bootstrap> GreetStore(
    const StoreMeeting& meeting, FileDescriptor socket, Deadline deadline, Deadline& warning) {
  auto spoke = std::make_unique<Spoke>(
      SettingsOf(meeting),
      FrameStream(std::move(socket), kMostOfHub, NameAt(0, meeting.place.Name())), warning);
  const Frame challenge = ReceiveUnproven(*spoke, deadline, FrameKind::kChallenge);
  warning = spoke->warning();
  if (challenge.kind == FrameKind::kError) return nullptr;
  const std::string claims = ClaimsOf(meeting, RandomBytes());
  const std::string covered = Covered(challenge.bytes, meeting.rank, claims);
  const auto prove = [&](ProofOf what) { return Prove(meeting.secret, what, covered); };
  spoke->hub().Send({FrameKind::kGreeting, meeting.rank, claims + prove(ProofOf::kRank)});
  const Frame proven = ReceiveUnproven(*spoke, deadline, FrameKind::kProven);
  warning = spoke->warning();
  if (proven.kind == FrameKind::kError) return nullptr;
  if (!base::EqualInConstantTime(proven.bytes, prove(ProofOf::kHub)))
    throw Error(
        ErrorCode::kUnavailable, Text(
                                     "the process that listens as ", spoke->hub().peer(),
                                     " does not know the secret of this job"));
  if (!meeting.secret.empty())
    spoke->hub().Seal(prove(ProofOf::kKeyOfRank), prove(ProofOf::kKeyOfHub));
  // Rank 0 began to wait before this moment, so its deadline is earlier.
  spoke->AwaitAllRanks(Clock::now() + meeting.timeout);
  return spoke;
}

}  // namespace

std::unique_ptr<Bootstrap> JoinAtStore(const StoreMeeting& meeting) {
  CheckMeeting(meeting);
  if (meeting.rank == 0) {
    StoreMeeting here = meeting;
    StoreDoor door(here);
    FileDescriptor listener = here.size > 1 ? ListenOn(here.place, "rank 0") : FileDescriptor();
    if (here.listening) here.listening(here.place.port);
    return GatherAtHub(SettingsOf(here), std::move(listener), door);
  }
  const Deadline deadline = Clock::now() + meeting.timeout;
  Deadline warning = Clock::now() + std::max(meeting.warning_after, kLeastWarning);
  std::string cause;
  const auto wait = [&](const char* verb, std::chrono::seconds time) {
    return Text(
        verb, time.count(), " s for ", NameAt(0, meeting.place.Name()),
        " to call Init; the last attempt to connect failed: ", cause);
  };
  for (auto pause = kFirstRetry;; pause = std::min(2 * pause, kLongestRetry)) {
    FileDescriptor socket =
        TryConnect(meeting.place, "rank 0", std::min(deadline, Clock::now() + kConnectTime), cause);
    if (socket.get() >= 0) {
      if (auto spoke = GreetStore(meeting, std::move(socket), deadline, warning)) return spoke;
      cause = "the process that listens there closed the connection";
    }
    ::poll(nullptr, 0, std::min(static_cast<int>(pause.count()), MostOfWait(deadline)));
    if (Clock::now() >= deadline)
      throw Error(ErrorCode::kTimeout, wait("waited ", meeting.timeout));
    if (Clock::now() >= warning) {
      if (meeting.warn) meeting.warn(wait("waiting for ", meeting.warning_after));
      warning = Deadline::max();
    }
  }
}

}  // namespace dtrun::ops
