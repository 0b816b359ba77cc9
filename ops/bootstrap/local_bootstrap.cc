// The first rank binds the name of the meeting and becomes the hub. The other ranks find the name
// taken and connect to it. Hub and rank greet each other with their ranks. When all ranks are
// there, the hub tells them so and releases the name. A gather goes to the hub and back (a star).
//
// If a rank fails, it sends the reason to the others, if it can. Otherwise the end of its
// connection tells them.

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <vector>

#include "base/text.h"
#include "dtrun/error.h"
#include "ops/bootstrap/bootstrap.h"
#include "ops/bootstrap/local_socket.h"

namespace dtrun::ops {
namespace {

using base::Text;
using Clock = std::chrono::steady_clock;
using State = LocalFrameReader::State;

constexpr uint64_t kMostBytes = 16 << 20;  // of one rank's part
constexpr size_t kMostStrangers = 64;      // unknown connections, beyond one per rank
constexpr std::chrono::milliseconds kFirstPause{1}, kLongestPause{50};
constexpr std::chrono::seconds kHubsWord{2}, kLeastWarning{1};

// The number of a frame is the rank for kGreeting and the ErrorCode for kError.
enum Kind : uint32_t { kGreeting, kAllHere, kPart, kAll, kError };

// Turns a name of any length into a name of fixed length (two FNV-1a hashes) that contains the
// user.
std::string SocketName(const std::string& name) {
  uint64_t hashes[2] = {0xcbf29ce484222325, 0x84222325cbf29ce4};
  for (uint64_t& hash : hashes)
    for (const unsigned char c : name) hash = (hash ^ c) * 0x100000001b3;
  return Text("dtrun.ranks.", ::geteuid(), '.', hashes[0], '.', hashes[1]);
}

struct Peer {
  FileDescriptor socket;
  LocalFrameReader reader{kMostBytes};
  pid_t process = 0;
};

// A negative rank stands for a process that has not told its rank.
std::string NameOf(int rank, pid_t process) {
  if (rank < 0) return Text("the rank that is process ", process);
  return Text("rank ", rank, " (process ", process, ")");
}

Error LostPeer(int rank, pid_t process) {
  return Error(ErrorCode::kPeerLost, Text(NameOf(rank, process), " ended during Init"));
}

FileDescriptor NewSocket() {
  FileDescriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (socket.get() < 0) ThrowErrno("socket");
  return socket;
}

void CheckLength(const std::string& bytes) {
  if (bytes.size() <= kMostBytes) return;
  throw Error(
      ErrorCode::kSystem,
      Text("a rank brings ", bytes.size(), " bytes to Init; expected at most ", kMostBytes));
}

std::string Pack(const std::vector<std::string>& parts) {
  std::string packed;
  for (const std::string& part : parts) {
    const uint64_t length = part.size();
    packed.append(reinterpret_cast<const char*>(&length), sizeof length);
    packed += part;
  }
  return packed;
}

std::vector<std::string> Unpack(const std::string& packed, int count) {
  std::vector<std::string> parts;
  size_t at = 0;
  for (int i = 0; i < count; ++i) {
    uint64_t length = 0;
    if (packed.size() - at < sizeof length) break;
    std::memcpy(&length, packed.data() + at, sizeof length);
    at += sizeof length;
    if (packed.size() - at < length) break;
    parts.push_back(packed.substr(at, length));
    at += length;
  }
  if (static_cast<int>(parts.size()) != count || at != packed.size())
    throw Error(ErrorCode::kSystem, "invalid message from a rank of this host: expected a gather");
  return parts;
}

// ---- The hub ------------------------------------------------------------------------------------

class Hub : public Bootstrap {
 public:
  Hub(const LocalMeeting& meeting, FileDescriptor listener)
      : meeting_(meeting), peers_(static_cast<size_t>(meeting.size)) {
    ReportErrors([&] { Gather(std::move(listener)); });
  }

  int rank() const override { return meeting_.rank; }
  int size() const override { return meeting_.size; }

  std::vector<std::string> AllGather(const std::string& bytes) override {
    std::vector<std::string> all;
    ReportErrors([&] {
      CheckLength(bytes);
      all = CollectAndSpread(bytes);
    });
    return all;
  }

  std::unique_ptr<SegmentExchange> ConnectSegmentExchange(Bootstrap& ranks) override {
    return ConnectSocketExchange(ranks, meeting_.timeout);
  }

 private:
  template <typename Body>
  void ReportErrors(const Body& body) {
    try {
      body();
    } catch (const Error& error) {
      const LocalFrame frame{kError, static_cast<int32_t>(error.code()), error.what()};
      const Deadline soon = Clock::now() + std::chrono::seconds(1);
      for (const auto& connected : {&peers_, &strangers_}) {
        for (const std::optional<Peer>& peer : *connected) {
          try {
            if (peer) SendFrame(peer->socket.get(), frame, soon);
          } catch (const Error&) {  // this peer learns it from the end of the connection
          }
        }
      }
      peers_.clear();
      peers_.resize(static_cast<size_t>(meeting_.size));
      throw;
    }
  }

  std::vector<int> Missing() const {
    std::vector<int> missing;
    for (int r = 0; r < meeting_.size; ++r)
      if (r != meeting_.rank && !peers_[static_cast<size_t>(r)]) missing.push_back(r);
    return missing;
  }

  void Gather(FileDescriptor listener) {
    const Deadline deadline = Clock::now() + meeting_.timeout;
    Deadline warning = Clock::now() + meeting_.warning_after;
    while (!Missing().empty()) {
      if (!PollAll(listener.get(), std::min(deadline, warning))) {
        if (Clock::now() >= deadline)
          throw Error(
              ErrorCode::kTimeout,
              Text(
                  "waited ", meeting_.timeout.count(), " s for ", base::RankList(Missing()), " of ",
                  meeting_.size, " to call Init"));
        if (meeting_.warn)
          meeting_.warn(Text(
              "waiting for ", meeting_.warning_after.count(), " s for ", base::RankList(Missing()),
              " of ", meeting_.size, " to call Init"));
        warning = Deadline::max();
        continue;
      }
      Accept(listener.get());
      for (std::optional<Peer>& stranger : strangers_) Greet(stranger);
      std::erase_if(strangers_, [](const auto& stranger) { return !stranger; });
      for (int r = 0; r < meeting_.size; ++r) CheckSilent(r);
    }
    strangers_.clear();
    for (int r = 0; r < meeting_.size; ++r)
      if (r != meeting_.rank) SendTo(r, {kAllHere}, deadline);
  }

  void Accept(int listener) {
    for (;;) {
      Peer peer;
      peer.socket =
          FileDescriptor(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (peer.socket.get() < 0) {
        if (errno == EAGAIN || errno == EWOULDBLOCK || errno == ECONNABORTED || errno == EINTR)
          return;
        ThrowErrno("accept of a rank of this host");
      }
      const std::optional<pid_t> process = TrustedPeer(peer.socket.get());
      if (!process || strangers_.size() >= peers_.size() + kMostStrangers) continue;
      peer.process = *process;
      const LocalFrame greeting{kGreeting, meeting_.rank, Text(meeting_.size)};
      if (SendFrame(peer.socket.get(), greeting, Clock::now() + meeting_.timeout))
        strangers_.emplace_back(std::move(peer));
    }
  }

  // Seats a process that has told its rank, and disconnects a process that is not a rank.
  void Greet(std::optional<Peer>& stranger) {
    State state = State::kEnded;
    try {
      state = stranger->reader.Read(stranger->socket.get());
    } catch (const Error&) {
    }
    if (state == State::kPartial) return;
    const LocalFrame greeting = stranger->reader.frame();
    if (state == State::kEnded || greeting.kind != kGreeting) return stranger.reset();
    const int rank = greeting.number;
    if (greeting.bytes != Text(meeting_.size))
      throw Error(
          ErrorCode::kMismatch,
          Text(
              NameOf(meeting_.rank, ::getpid()), " expects ", meeting_.size, " ranks, but ",
              NameOf(rank, stranger->process), " expects ", greeting.bytes.substr(0, 20)));
    if (rank < 0 || rank >= meeting_.size) return stranger.reset();
    std::optional<Peer>& seat = peers_[static_cast<size_t>(rank)];
    if (rank == meeting_.rank || seat)
      throw Error(
          ErrorCode::kInvalidArgument,
          Text(
              "two processes are rank ", rank, ": ", seat ? seat->process : ::getpid(), " and ",
              stranger->process, "; expected each rank once"));
    seat = std::move(stranger);
    stranger.reset();
  }

  // Waits until a process connects or sends. Returns false if the deadline passes first.
  bool PollAll(int listener, Deadline deadline) {
    std::vector<pollfd> files;
    if (listener >= 0) files.push_back({listener, POLLIN, 0});
    for (const auto& connected : {&peers_, &strangers_})
      for (const std::optional<Peer>& peer : *connected)
        if (peer) files.push_back({peer->socket.get(), POLLIN, 0});
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (left <= 0) return false;
    const int ready =
        ::poll(files.data(), files.size(), static_cast<int>(std::min<int64_t>(left, 1'000'000)));
    if (ready < 0 && errno != EINTR) ThrowErrno("poll");
    return ready != 0;
  }

  // A rank that waits for the hub sends no frames. Only the end of its connection can arrive.
  void CheckSilent(int rank) {
    std::optional<Peer>& peer = peers_[static_cast<size_t>(rank)];
    if (!peer) return;
    const State state = peer->reader.Read(peer->socket.get());
    if (state == State::kPartial) return;
    const Error lost = LostPeer(rank, peer->process);
    peer.reset();
    throw lost;
  }

  void SendTo(int rank, const LocalFrame& frame, Deadline deadline) {
    std::optional<Peer>& peer = peers_[static_cast<size_t>(rank)];
    if (!peer)
      throw Error(ErrorCode::kPeerLost, "the connection to the rank was closed after an error");
    if (SendFrame(peer->socket.get(), frame, deadline, NameOf(rank, peer->process))) return;
    const Error lost = LostPeer(rank, peer->process);
    peer.reset();
    throw lost;
  }

  std::vector<std::string> CollectAndSpread(const std::string& bytes) {
    const Deadline deadline = Clock::now() + meeting_.timeout;
    const auto size = static_cast<size_t>(meeting_.size);
    std::vector<std::optional<std::string>> parts(size);
    parts[static_cast<size_t>(meeting_.rank)] = bytes;
    const auto missing = [&] {
      std::vector<int> ranks;
      for (size_t r = 0; r < size; ++r)
        if (!parts[r]) ranks.push_back(static_cast<int>(r));
      return ranks;
    };
    for (bool first = true; !missing().empty(); first = false) {
      if (!first && !PollAll(-1, deadline) && Clock::now() >= deadline)
        throw Error(
            ErrorCode::kTimeout, Text(
                                     "waited ", meeting_.timeout.count(), " s for ",
                                     base::RankList(missing()), " during Init"));
      for (int r = 0; r < meeting_.size; ++r) {
        if (r == meeting_.rank) continue;
        std::optional<std::string>& part = parts[static_cast<size_t>(r)];
        if (part) {
          CheckSilent(r);
        } else {
          TakePart(r, part);
        }
      }
    }
    std::vector<std::string> all;
    for (std::optional<std::string>& part : parts) all.push_back(std::move(*part));
    const LocalFrame packed{kAll, 0, Pack(all)};
    for (int r = 0; r < meeting_.size; ++r)
      if (r != meeting_.rank) SendTo(r, packed, deadline);
    return all;
  }

  void TakePart(int rank, std::optional<std::string>& part) {
    std::optional<Peer>& peer = peers_[static_cast<size_t>(rank)];
    if (!peer)
      throw Error(ErrorCode::kPeerLost, "the connection to the rank was closed after an error");
    const State state = peer->reader.Read(peer->socket.get());
    if (state == State::kPartial) return;
    LocalFrame& frame = peer->reader.frame();
    if (state == State::kWhole && frame.kind == kPart) {
      part = std::move(frame.bytes);
      return;
    }
    const Error lost = state == State::kWhole && frame.kind == kError
                           ? Error(static_cast<ErrorCode>(frame.number), frame.bytes)
                           : LostPeer(rank, peer->process);
    peer.reset();
    throw lost;
  }

  LocalMeeting meeting_;
  std::vector<std::optional<Peer>> peers_;  // by rank; none for this rank
  std::vector<std::optional<Peer>> strangers_;
};

// ---- The other ranks ----------------------------------------------------------------------------

class Spoke : public Bootstrap {
 public:
  // Returns null if the hub has just released the name.
  static std::unique_ptr<Spoke> Join(
      const LocalMeeting& meeting, FileDescriptor socket, pid_t process, Deadline deadline) {
    std::unique_ptr<Spoke> spoke(new Spoke(meeting, std::move(socket), process));
    const LocalFrame greeting{kGreeting, meeting.rank, Text(meeting.size)};
    if (!SendFrame(spoke->hub_.socket.get(), greeting, deadline)) return nullptr;
    const std::optional<LocalFrame> hello = spoke->Receive(deadline);
    if (!hello) return nullptr;
    spoke->hub_rank_ = hello->number;
    // No warning from here on: the hub has waited longer, and its warning names the missing ranks.
    spoke->warning_ = Deadline::max();
    spoke->Expect(kAllHere, deadline + kHubsWord);
    return spoke;
  }

  int rank() const override { return meeting_.rank; }
  int size() const override { return meeting_.size; }

  std::vector<std::string> AllGather(const std::string& bytes) override {
    CheckLength(bytes);
    const Deadline deadline = Clock::now() + meeting_.timeout;
    WarnLater();
    if (!SendFrame(
            hub_.socket.get(), {kPart, meeting_.rank, bytes}, deadline,
            NameOf(hub_rank_, hub_.process)))
      Expect(kError, deadline);  // throws the reason that the hub sent
    return Unpack(Expect(kAll, deadline).bytes, meeting_.size);
  }

  std::unique_ptr<SegmentExchange> ConnectSegmentExchange(Bootstrap& ranks) override {
    return ConnectSocketExchange(ranks, meeting_.timeout);
  }

 private:
  Spoke(const LocalMeeting& meeting, FileDescriptor socket, pid_t process)
      : meeting_(meeting),
        hub_{
            std::move(socket),
            LocalFrameReader{(kMostBytes + sizeof(uint64_t)) * static_cast<uint64_t>(meeting.size)},
            process} {
    WarnLater();
    if (meeting.rank_of) hub_rank_ = meeting.rank_of(process).value_or(-1);
  }

  // A running hub answers within kLeastWarning, even if the user wants to be warned earlier.
  void WarnLater() { warning_ = Clock::now() + std::max(meeting_.warning_after, kLeastWarning); }

  // Returns nullopt if the hub is gone. Throws an error that the hub reports.
  std::optional<LocalFrame> Receive(Deadline deadline) {
    for (;;) {
      const State state = hub_.reader.Read(hub_.socket.get());
      if (state == State::kEnded) return std::nullopt;
      if (state == State::kWhole) break;
      if (AwaitReady(hub_.socket.get(), POLLIN, std::min(deadline, warning_))) continue;
      if (Clock::now() >= deadline)
        throw Error(
            ErrorCode::kTimeout, Text(
                                     "waited ", meeting_.timeout.count(), " s for ",
                                     NameOf(hub_rank_, hub_.process), " during Init"));
      if (meeting_.warn)
        meeting_.warn(Text(
            "waiting for ", meeting_.warning_after.count(), " s for ",
            NameOf(hub_rank_, hub_.process), " during Init"));
      warning_ = Deadline::max();
    }
    LocalFrame frame = std::move(hub_.reader.frame());
    if (frame.kind == kError) throw Error(static_cast<ErrorCode>(frame.number), frame.bytes);
    return frame;
  }

  LocalFrame Expect(Kind kind, Deadline deadline) {
    std::optional<LocalFrame> frame = Receive(deadline);
    if (!frame || frame->kind != kind) throw LostPeer(hub_rank_, hub_.process);
    return std::move(*frame);
  }

  LocalMeeting meeting_;
  Peer hub_;
  int hub_rank_ = -1;  // not known yet
  Deadline warning_;   // when to warn that the hub does not answer
};

}  // namespace

std::unique_ptr<Bootstrap> JoinLocally(const LocalMeeting& meeting) {
  const LocalAddress address(SocketName(meeting.name));
  const Deadline deadline = Clock::now() + meeting.timeout;
  for (auto pause = kFirstPause;; pause = std::min(2 * pause, kLongestPause)) {
    FileDescriptor socket = NewSocket();
    if (::bind(socket.get(), address.get(), address.length()) == 0) {
      if (::listen(socket.get(), SOMAXCONN) != 0) ThrowErrno("listen");
      return std::make_unique<Hub>(meeting, std::move(socket));
    }
    if (errno != EADDRINUSE) ThrowErrno("bind of an abstract unix socket");
    if (::connect(socket.get(), address.get(), address.length()) == 0) {
      const std::optional<pid_t> process = TrustedPeer(socket.get());
      if (!process)
        throw Error(
            ErrorCode::kUnavailable,
            "a process of another user listens at the meeting place of the ranks");
      if (auto spoke = Spoke::Join(meeting, std::move(socket), *process, deadline)) return spoke;
    }
    // The owner of the name does not listen yet, or not any more. No event tells when that changes.
    if (Clock::now() >= deadline)
      throw Error(
          ErrorCode::kTimeout,
          Text("waited ", meeting.timeout.count(), " s for the other ranks to call Init"));
    ::poll(nullptr, 0, static_cast<int>(pause.count()));
  }
}

}  // namespace dtrun::ops
