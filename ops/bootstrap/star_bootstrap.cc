// The hub greets the ranks that connect. When all ranks are there, the hub tells them so and stops
// listening. A gather goes to the hub and back: each rank sends its part, and gets all parts.
//
// If a rank fails, the hub sends the reason to all other ranks. If the hub cannot do so, the end of
// its connections tells them.

#include "ops/bootstrap/star_bootstrap.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "base/hmac_sha256.h"
#include "base/text.h"
#include "dtrun/error.h"
#include "ops/bootstrap/tcp_socket.h"

namespace dtrun::ops {
namespace {

using base::Text;
using Clock = std::chrono::steady_clock;
using State = FrameStream::State;

constexpr uint32_t kFrameMark = 0x6e757274;  // bytes of another program do not begin like this
constexpr uint64_t kFrameChunk = 64 << 10;   // memory grows with the bytes that arrive
constexpr uint64_t kSealBytes = 32;
// TCP gives up a connection if the other end has no room for its bytes for 30 s. So a rank sends a
// longer part only when the hub reads. A shorter part fits into the buffers of the kernel.
constexpr uint64_t kMostUnread = 16 << 10;

struct FrameHeader {
  uint32_t mark;
  FrameKind kind;
  int32_t number, unused;
  uint64_t bytes;
};

std::string SealOf(
    const std::string& key, uint64_t number, const std::string& header, const std::string& digest) {
  const std::string counted(reinterpret_cast<const char*>(&number), sizeof number);
  return base::HmacSha256(key, counted + header + digest);
}

}  // namespace

// ---- Frames -------------------------------------------------------------------------------------

FrameStream::FrameStream(FileDescriptor socket, uint64_t most_bytes, std::string peer)
    : socket_(std::move(socket)), most_bytes_(most_bytes), peer_(std::move(peer)) {}

// Receives until `target` has `size` bytes. Returns nullopt if it has them.
std::optional<State> FrameStream::Fill(std::string& target, uint64_t size) {
  while (target.size() < size) {
    const size_t had = target.size();
    const size_t wanted = std::min(size - had, kFrameChunk);
    target.resize(had + wanted);
    const ssize_t got = ::recv(socket_.get(), target.data() + had, wanted, MSG_DONTWAIT);
    const int error = errno;
    target.resize(had + static_cast<size_t>(std::max<ssize_t>(got, 0)));
    if (got > 0 || (got < 0 && error == EINTR)) continue;
    if (got == 0 || HasPeerEnded(error)) return State::kEnded;
    if (error == EAGAIN || error == EWOULDBLOCK) return State::kPartial;
    errno = error;
    ThrowErrno("recv from " + peer_);
  }
  return std::nullopt;
}

State FrameStream::Read() {
  if (std::exchange(whole_, false)) {
    header_.clear();
    seal_.clear();
    frame_ = {};
  }
  FrameHeader header;
  if (const auto stop = Fill(header_, sizeof header)) return *stop;
  std::memcpy(&header, header_.data(), sizeof header);
  if (header.mark != kFrameMark || header.bytes > most_bytes_)
    throw Error(
        ErrorCode::kSystem,
        Text("invalid message from ", peer_, "; expected at most ", most_bytes_, " bytes"));
  if (const auto stop = Fill(frame_.bytes, header.bytes)) return *stop;
  if (const auto stop = Fill(seal_, receive_key_.empty() ? 0 : kSealBytes)) return *stop;
  if (!receive_key_.empty() &&
      !base::EqualInConstantTime(
          seal_, SealOf(receive_key_, frames_received_++, header_, base::Sha256(frame_.bytes))))
    throw Error(
        ErrorCode::kSystem,
        Text("a message from ", peer_, " has a wrong seal: the network or a process altered it"));
  frame_.kind = header.kind;
  frame_.number = header.number;
  whole_ = true;
  return State::kWhole;
}

void FrameStream::Send(std::shared_ptr<const Frame> frame) {
  const FrameHeader header{kFrameMark, frame->kind, frame->number, 0, frame->bytes.size()};
  Outgoing next{
      std::string(reinterpret_cast<const char*>(&header), sizeof header), "", std::move(frame)};
  if (!send_key_.empty()) {
    std::string& digest = next.frame->digest;
    if (digest.empty()) digest = base::Sha256(next.frame->bytes);
    next.seal = SealOf(send_key_, frames_sent_++, next.header, digest);
  }
  outgoing_.push_back(std::move(next));
}

bool FrameStream::Flush() {
  while (!outgoing_.empty()) {
    Outgoing& next = outgoing_.front();
    iovec rest[3];
    size_t count = 0;
    uint64_t skipped = next.sent;
    const std::string* const parts[] = {&next.header, &next.frame->bytes, &next.seal};
    for (const std::string* part : parts) {
      const uint64_t skip = std::min<uint64_t>(skipped, part->size());
      skipped -= skip;
      if (skip < part->size())
        rest[count++] = {const_cast<char*>(part->data()) + skip, part->size() - skip};
    }
    if (count == 0) {
      outgoing_.pop_front();
      continue;
    }
    msghdr message{};
    message.msg_iov = rest;
    message.msg_iovlen = count;
    const ssize_t some = ::sendmsg(socket_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (some >= 0) {
      next.sent += static_cast<uint64_t>(some);
    } else if (HasPeerEnded(errno)) {
      return false;
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return true;
    } else if (errno != EINTR) {
      ThrowErrno("send to " + peer_);
    }
  }
  return true;
}

void FrameStream::EndSending() { ::shutdown(socket_.get(), SHUT_WR); }

void FrameStream::Seal(const std::string& send_key, const std::string& receive_key) {
  send_key_ = send_key;
  receive_key_ = receive_key;
}

// ---- Parts of a gather --------------------------------------------------------------------------

namespace {

void CheckLength(const std::string& bytes, const StarSettings& settings) {
  if (bytes.size() <= settings.most_of_rank) return;
  throw Error(
      ErrorCode::kSystem, Text(
                              "a rank brings ", bytes.size(), " bytes to Init; expected at most ",
                              settings.most_of_rank));
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
    throw Error(ErrorCode::kSystem, "invalid message from the hub: expected a gather");
  return parts;
}

Error LostPeer(const std::string& name) {
  return Error(ErrorCode::kPeerLost, Text(name, " ended during Init"));
}

// Waits until one of the files is ready. Returns false if the deadline passes first.
bool AwaitAny(std::vector<pollfd> files, Deadline deadline) {
  for (;;) {
    const int most = MostOfWait(deadline);
    if (most <= 0) return false;
    const int ready = ::poll(files.data(), files.size(), most);
    if (ready < 0 && errno != EINTR) ThrowErrno("poll");
    if (ready != 0) return true;
  }
}

pollfd BothWays(const FrameStream& stream) {
  const int events = stream.sending() ? POLLIN | POLLOUT : POLLIN;
  return {stream.socket(), static_cast<short>(events), 0};
}

}  // namespace

std::string NameAt(int rank, const std::string& place) {
  return Text("rank ", rank, " (", place, ")");
}

// ---- The hub ------------------------------------------------------------------------------------

namespace {

constexpr size_t kMostStrangers = 256;  // beyond one per rank
constexpr int kMostAccepted = 64;       // at a time, so that strangers are heard in between
constexpr std::chrono::milliseconds kLastWord{500};  // of a hub that has failed

class Hub : public Bootstrap {
 public:
  Hub(const StarSettings& settings, FileDescriptor listener, Door& door)
      : settings_(settings), guests_(static_cast<size_t>(settings.size)) {
    ReportErrors([&] { Gather(std::move(listener), door); });
  }

  int rank() const override { return settings_.rank; }
  int size() const override { return settings_.size; }

  std::vector<std::string> AllGather(const std::string& bytes) override {
    std::vector<std::string> all;
    ReportErrors([&] {
      CheckLength(bytes, settings_);
      all = CollectAndSpread(bytes);
    });
    return all;
  }

  std::unique_ptr<SegmentExchange> ConnectSegmentExchange(Bootstrap& ranks) override {
    return ConnectSocketExchange(ranks, settings_.timeout);
  }

 private:
  struct Guest {
    FrameStream stream;
    std::string place;
  };

  template <typename Body>
  void ReportErrors(const Body& body) {
    try {
      body();
    } catch (const Error& error) {
      Tell(error);
      guests_.clear();
      guests_.resize(static_cast<size_t>(settings_.size));
      throw;
    }
  }

  // The hub reads until the other end closes. If it closed a connection with unread bytes, the
  // kernel would reset the connection, and the error might not arrive.
  void Tell(const Error& error) {
    const auto frame = std::make_shared<const Frame>(
        Frame{FrameKind::kError, static_cast<int32_t>(error.code()), error.what()});
    std::vector<FrameStream*> streams;
    for (std::optional<Guest>& guest : guests_)
      if (guest) streams.push_back(&guest->stream);
    for (Stranger& stranger : strangers_) streams.push_back(&stranger.stream);
    for (FrameStream* stream : streams) stream->Send(frame);
    const Deadline deadline = Clock::now() + kLastWord;
    for (;;) {
      std::erase_if(streams, [](FrameStream* stream) { return HasHeard(*stream); });
      std::vector<pollfd> files;
      for (const FrameStream* stream : streams) files.push_back(BothWays(*stream));
      if (files.empty() || !AwaitAny(std::move(files), deadline)) return;
    }
  }

  // Returns true if the other end has closed after the last frame.
  static bool HasHeard(FrameStream& stream) {
    try {
      if (!stream.Flush()) return true;
      if (!stream.sending()) stream.EndSending();
      State state = State::kWhole;
      while (state == State::kWhole) state = stream.Read();
      return state == State::kEnded;
    } catch (const Error&) {
      return true;
    }
  }

  template <typename IsMissing>
  std::vector<int> RanksThat(const IsMissing& is_missing) const {
    std::vector<int> ranks;
    for (int r = 0; r < settings_.size; ++r)
      if (r != settings_.rank && is_missing(static_cast<size_t>(r))) ranks.push_back(r);
    return ranks;
  }

  std::vector<int> Missing() const {
    return RanksThat([this](size_t r) { return !guests_[r]; });
  }

  void Gather(FileDescriptor listener, Door& door) {
    const Deadline deadline = Clock::now() + settings_.timeout;
    Deadline warning = Clock::now() + settings_.warning_after;
    while (!Missing().empty()) {
      AwaitNews(listener.get(), std::min(deadline, warning));
      if (Clock::now() >= deadline)
        throw Error(
            ErrorCode::kTimeout,
            Text(
                "waited ", settings_.timeout.count(), " s for ", base::RankList(Missing()), " of ",
                settings_.size, " to call Init"));
      if (Clock::now() >= warning) {
        if (settings_.warn)
          settings_.warn(Text(
              "waiting for ", settings_.warning_after.count(), " s for ", base::RankList(Missing()),
              " of ", settings_.size, " to call Init"));
        warning = Deadline::max();
      }
      HearStrangers(listener.get(), door);
      for (int r = 0; r < settings_.size; ++r) CheckSilent(r);
    }
    strangers_.clear();
    listener = FileDescriptor();
    SendToAll({FrameKind::kAllHere}, deadline);
  }

  // Waits until a process connects or sends, or until a stranger is late.
  void AwaitNews(int listener, Deadline deadline) {
    std::vector<pollfd> files;
    if (listener >= 0) files.push_back({listener, POLLIN, 0});
    for (const std::optional<Guest>& guest : guests_)
      if (guest) files.push_back(BothWays(guest->stream));
    for (const Stranger& stranger : strangers_) {
      files.push_back(BothWays(stranger.stream));
      deadline = std::min(deadline, stranger.deadline);
    }
    AwaitAny(std::move(files), deadline);
  }

  void HearStrangers(int listener, Door& door) {
    for (int i = 0; i < kMostAccepted && door.Accept(listener, strangers_); ++i)
      if (strangers_.size() > guests_.size() + kMostStrangers) {
        door.Drop(strangers_.front(), "too many processes have connected without a greeting");
        strangers_.pop_front();
      }
    for (auto stranger = strangers_.begin(); stranger != strangers_.end();)
      stranger = IsDone(*stranger, door) ? strangers_.erase(stranger) : std::next(stranger);
  }

  // Seats a process that has told its rank. Returns false if its greeting is not complete.
  bool IsDone(Stranger& stranger, Door& door) {
    State state = State::kEnded;
    std::string reason = "the process closed the connection before its greeting";
    try {
      if (stranger.stream.Flush()) state = stranger.stream.Read();
    } catch (const Error& error) {
      reason = error.what();
    }
    if (state == State::kPartial) {
      if (Clock::now() < stranger.deadline) return false;
      reason = "the process sent no complete greeting in time";
    }
    if (state != State::kWhole) {
      door.Drop(stranger, reason);
      return true;
    }
    const Frame greeting = std::move(stranger.stream.frame());
    if (const std::optional<RankClaim> claim = door.Check(stranger, greeting))
      Seat(stranger, *claim);
    return true;
  }

  void Seat(Stranger& stranger, const RankClaim& claim) {
    if (claim.size != Text(settings_.size))
      throw Error(
          ErrorCode::kMismatch,
          Text(
              NameAt(settings_.rank, settings_.place), " expects ", settings_.size, " ranks, but ",
              NameAt(claim.rank, stranger.place), " expects ", claim.size));
    if (claim.rank < 0 || claim.rank >= settings_.size) return;
    std::optional<Guest>& seat = guests_[static_cast<size_t>(claim.rank)];
    if (claim.rank == settings_.rank || seat)
      throw Error(
          ErrorCode::kInvalidArgument,
          Text(
              "two processes are rank ", claim.rank, ": ", seat ? seat->place : settings_.place,
              " and ", stranger.place, "; expected each rank once"));
    seat.emplace(Guest{std::move(stranger.stream), stranger.place});
    seat->stream.set_peer(NameAt(claim.rank, stranger.place));
    seat->stream.set_most_bytes(settings_.most_of_rank);
  }

  FrameStream& StreamOf(int rank) {
    std::optional<Guest>& guest = guests_[static_cast<size_t>(rank)];
    if (!guest)
      throw Error(ErrorCode::kPeerLost, "the connection to the rank was closed after an error");
    return guest->stream;
  }

  [[noreturn]] void Lose(int rank) {
    const Error lost = LostPeer(StreamOf(rank).peer());
    guests_[static_cast<size_t>(rank)].reset();
    throw lost;
  }

  // A rank that waits for the hub sends no frames. Only the end of its connection can arrive.
  void CheckSilent(int rank) {
    if (!guests_[static_cast<size_t>(rank)]) return;
    FrameStream& stream = StreamOf(rank);
    if (!stream.Flush() || stream.Read() != State::kPartial) Lose(rank);
  }

  void SendToAll(Frame frame, Deadline deadline) {
    const auto shared = std::make_shared<const Frame>(std::move(frame));
    for (int r = 0; r < settings_.size; ++r)
      if (r != settings_.rank) StreamOf(r).Send(shared);
    for (;;) {
      std::vector<pollfd> files;
      std::string slowest;
      for (int r = 0; r < settings_.size; ++r) {
        if (r == settings_.rank) continue;
        FrameStream& stream = StreamOf(r);
        if (!stream.Flush()) Lose(r);
        if (!stream.sending()) continue;
        files.push_back({stream.socket(), POLLOUT, 0});
        slowest = stream.peer();
      }
      if (files.empty()) return;
      if (!AwaitAny(std::move(files), deadline) && Clock::now() >= deadline)
        throw Error(ErrorCode::kTimeout, Text("waited too long for ", slowest, " during Init"));
    }
  }

  std::vector<std::string> CollectAndSpread(const std::string& bytes) {
    const Deadline deadline = Clock::now() + settings_.timeout;
    std::vector<std::optional<std::string>> parts(guests_.size());
    parts[static_cast<size_t>(settings_.rank)] = bytes;
    const auto ready = std::make_shared<const Frame>(Frame{FrameKind::kReady});
    for (int r = 0; r < settings_.size; ++r)
      if (r != settings_.rank) StreamOf(r).Send(ready);
    const auto missing = [&] { return RanksThat([&](size_t r) { return !parts[r]; }); };
    for (bool first = true; !missing().empty(); first = false) {
      if (!first) AwaitNews(-1, deadline);
      if (Clock::now() >= deadline)
        throw Error(
            ErrorCode::kTimeout, Text(
                                     "waited ", settings_.timeout.count(), " s for ",
                                     base::RankList(missing()), " during Init"));
      for (int r = 0; r < settings_.size; ++r) {
        if (r == settings_.rank) continue;
        std::optional<std::string>& part = parts[static_cast<size_t>(r)];
        if (part) {
          CheckSilent(r);
        } else {
          TakePart(r, part);
        }
      }
    }
    uint64_t total = 0;
    std::vector<std::string> all;
    for (std::optional<std::string>& part : parts) {
      total += part->size();
      all.push_back(std::move(*part));
    }
    if (total > settings_.most_of_all)
      throw Error(
          ErrorCode::kSystem, Text(
                                  "the ranks bring ", total, " bytes to Init; expected at most ",
                                  settings_.most_of_all));
    SendToAll({FrameKind::kAll, 0, Pack(all)}, deadline);
    return all;
  }

  void TakePart(int rank, std::optional<std::string>& part) {
    FrameStream& stream = StreamOf(rank);
    const State state = stream.Flush() ? stream.Read() : State::kEnded;
    if (state == State::kPartial) return;
    if (state == State::kEnded || stream.frame().kind != FrameKind::kPart) Lose(rank);
    part = std::move(stream.frame().bytes);
  }

  StarSettings settings_;
  std::vector<std::optional<Guest>> guests_;  // by rank; none for this rank
  std::list<Stranger> strangers_;
};

}  // namespace

std::unique_ptr<Bootstrap> GatherAtHub(
    const StarSettings& settings, FileDescriptor listener, Door& door) {
  return std::make_unique<Hub>(settings, std::move(listener), door);
}

// ---- The other ranks ----------------------------------------------------------------------------

Spoke::Spoke(const StarSettings& settings, FrameStream hub, Deadline warning)
    : settings_(settings), hub_(std::move(hub)), warning_(warning) {}

std::optional<Frame> Spoke::Receive(Deadline deadline) {
  for (;;) {
    // After a failed send, the reason of the hub may still be there.
    const bool alive = hub_.Flush();
    const State state = hub_.Read();
    if (state == State::kWhole) break;
    if (state == State::kEnded || !alive) return std::nullopt;
    const short events = hub_.sending() ? POLLIN | POLLOUT : POLLIN;
    if (AwaitReady(hub_.socket(), events, std::min(deadline, warning_))) continue;
    if (Clock::now() >= deadline)
      throw Error(
          ErrorCode::kTimeout,
          Text("waited ", settings_.timeout.count(), " s for ", hub_.peer(), " during Init"));
    if (settings_.warn)
      settings_.warn(Text(
          "waiting for ", settings_.warning_after.count(), " s for ", hub_.peer(), " during Init"));
    warning_ = Deadline::max();
  }
  Frame frame = std::move(hub_.frame());
  if (frame.kind == FrameKind::kError)
    throw Error(static_cast<ErrorCode>(frame.number), frame.bytes);
  return frame;
}

Frame Spoke::Expect(FrameKind kind, Deadline deadline) {
  std::optional<Frame> frame = Receive(deadline);
  if (!frame || frame->kind != kind) throw LostPeer(hub_.peer());
  return std::move(*frame);
}

// No warning from here on: the hub has waited longer, and its warning names the missing ranks. For
// the same reason the hub has the first word after a timeout.
void Spoke::AwaitAllRanks(Deadline deadline) {
  constexpr std::chrono::seconds kHubsWord{2};
  warning_ = Deadline::max();
  hub_.set_most_bytes(
      settings_.most_of_all + sizeof(uint64_t) * static_cast<uint64_t>(settings_.size));
  Expect(FrameKind::kAllHere, deadline + kHubsWord);
}

std::vector<std::string> Spoke::AllGather(const std::string& bytes) {
  CheckLength(bytes, settings_);
  const Deadline deadline = Clock::now() + settings_.timeout;
  warning_ = Clock::now() + std::max(settings_.warning_after, kLeastWarning);
  const bool is_long = bytes.size() > kMostUnread;
  if (is_long) Expect(FrameKind::kReady, deadline);
  hub_.Send({FrameKind::kPart, settings_.rank, bytes});
  if (!is_long) Expect(FrameKind::kReady, deadline);
  return Unpack(Expect(FrameKind::kAll, deadline).bytes, settings_.size);
}

std::unique_ptr<SegmentExchange> Spoke::ConnectSegmentExchange(Bootstrap& ranks) {
  return ConnectSocketExchange(ranks, settings_.timeout);
}

}  // namespace dtrun::ops
