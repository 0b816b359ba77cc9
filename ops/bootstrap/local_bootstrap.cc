// The first rank binds the name of the meeting and becomes the hub. The other ranks find the name
// taken and connect to it. Hub and rank greet each other with their ranks.

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/text.h"
#include "dtrun/error.h"
#include "ops/bootstrap/bootstrap.h"
#include "ops/bootstrap/local_socket.h"
#include "ops/bootstrap/star_bootstrap.h"

namespace dtrun::ops {
namespace {

using base::Text;
using Clock = std::chrono::steady_clock;

constexpr uint64_t kMostLocalBytes = 16 << 20;  // of one rank's part
constexpr std::chrono::milliseconds kFirstPause{1}, kLongestPause{50};

// Turns a name of any length into a name of fixed length (two FNV-1a hashes) that contains the
// user.
std::string SocketName(const std::string& name) {
  uint64_t hashes[2] = {0xcbf29ce484222325, 0x84222325cbf29ce4};
  for (uint64_t& hash : hashes)
    for (const unsigned char c : name) hash = (hash ^ c) * 0x100000001b3;
  return Text("dtrun.ranks.", ::geteuid(), '.', hashes[0], '.', hashes[1]);
}

std::string PlaceOfProcess(pid_t process) { return Text("process ", process); }

FileDescriptor NewSocket() {
  FileDescriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (socket.get() < 0) ThrowErrno("socket");
  return socket;
}

StarSettings SettingsOf(const LocalMeeting& meeting) {
  return {
      meeting.rank,
      meeting.size,
      PlaceOfProcess(::getpid()),
      meeting.timeout,
      meeting.warning_after,
      meeting.warn,
      kMostLocalBytes,
      kMostLocalBytes * static_cast<uint64_t>(meeting.size)};
}

Frame LocalGreeting(const StarSettings& settings) {
  return {FrameKind::kGreeting, settings.rank, Text(settings.size)};
}

// The kernel tells the user of each process. A process of another user is not heard.
class LocalDoor : public Door {
 public:
  explicit LocalDoor(const StarSettings& settings) : settings_(settings) {}

  bool Accept(int listener, std::list<Stranger>& strangers) override {
    FileDescriptor socket(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (socket.get() < 0) {
      if (errno == EAGAIN || errno == EWOULDBLOCK || errno == ECONNABORTED || errno == EINTR)
        return false;
      ThrowErrno("accept of a rank of this host");
    }
    const std::optional<pid_t> process = TrustedPeer(socket.get());
    if (!process) return true;
    strangers.push_back(
        {FrameStream(std::move(socket), kMostLocalBytes, "a rank of this host"),
         PlaceOfProcess(*process)});
    strangers.back().stream.Send(LocalGreeting(settings_));
    return true;
  }

  std::optional<RankClaim> Check(Stranger&, const Frame& greeting) override {
    if (greeting.kind != FrameKind::kGreeting) return std::nullopt;
    return RankClaim{greeting.number, greeting.bytes.substr(0, 20)};
  }

  void Drop(const Stranger&, const std::string&) override {}

 private:
  const StarSettings& settings_;
};

// Returns null if the hub has just released the name.
std::unique_ptr<Bootstrap> GreetHub(
    const LocalMeeting& meeting, FileDescriptor socket, pid_t process, Deadline deadline) {
  const StarSettings settings = SettingsOf(meeting);
  const std::string place = PlaceOfProcess(process);
  const std::optional<int> known = meeting.rank_of ? meeting.rank_of(process) : std::nullopt;
  const std::string name = known ? NameAt(*known, place) : "the rank that is " + place;
  auto spoke = std::make_unique<Spoke>(
      settings, FrameStream(std::move(socket), kMostLocalBytes, name),
      Clock::now() + std::max(meeting.warning_after, kLeastWarning));
  spoke->hub().Send(LocalGreeting(settings));
  const std::optional<Frame> greeting = spoke->Receive(deadline);
  if (!greeting) return nullptr;
  spoke->hub().set_peer(NameAt(greeting->number, place));
  spoke->AwaitAllRanks(deadline);
  return spoke;
}

}  // namespace

std::unique_ptr<Bootstrap> JoinLocally(const LocalMeeting& meeting) {
  const LocalAddress address(SocketName(meeting.name));
  const Deadline deadline = Clock::now() + meeting.timeout;
  for (auto pause = kFirstPause;; pause = std::min(2 * pause, kLongestPause)) {
    FileDescriptor socket = NewSocket();
    if (::bind(socket.get(), address.get(), address.length()) == 0) {
      if (::listen(socket.get(), SOMAXCONN) != 0) ThrowErrno("listen");
      const StarSettings settings = SettingsOf(meeting);
      LocalDoor door(settings);
      return GatherAtHub(settings, std::move(socket), door);
    }
    if (errno != EADDRINUSE) ThrowErrno("bind of an abstract unix socket");
    if (::connect(socket.get(), address.get(), address.length()) == 0) {
      const std::optional<pid_t> process = TrustedPeer(socket.get());
      if (!process)
        throw Error(
            ErrorCode::kUnavailable,
            "a process of another user listens at the meeting place of the ranks");
      if (auto spoke = GreetHub(meeting, std::move(socket), *process, deadline)) return spoke;
    }
    // The owner of the name does not listen yet, or not any more. No event tells when that changes.
    if (Clock::now() >= deadline)
      throw Error(
          ErrorCode::kTimeout,
          Text("waited ", meeting.timeout.count(), " s for the other ranks to call Init"));
    ::poll(nullptr, 0, std::min(static_cast<int>(pause.count()), MostOfWait(deadline)));
  }
}

}  // namespace dtrun::ops
