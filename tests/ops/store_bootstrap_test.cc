// The bootstrap of ranks that meet at a TCP address. Ranks are threads, and strangers are sockets.

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/text.h"
#include "dtrun/error.h"
#include "ops/bootstrap/bootstrap.h"
#include "ops/bootstrap/segment.h"
#include "ops/bootstrap/star_bootstrap.h"
#include "ops/bootstrap/tcp_socket.h"

namespace {

using dtrun::Error;
using dtrun::ErrorCode;
using dtrun::base::Text;
using dtrun::ops::Bootstrap;
using dtrun::ops::FileDescriptor;
using dtrun::ops::FrameKind;
using dtrun::ops::FrameStream;
using dtrun::ops::JoinAtStore;
using dtrun::ops::StoreMeeting;
using dtrun::ops::TcpPlace;
using namespace std::chrono_literals;

constexpr size_t kGreetingSize = 24 + 4 + 32 + 32 + 32;  // header, size, digest, random, proof

// A free port that no outgoing connection of this host uses as its own.
TcpPlace FreePlace(const std::string& host = "127.0.0.1") {
  static std::atomic<int> next{static_cast<int>(::getpid() % 11'000)};
  for (;;) {
    TcpPlace place{host, 20'000 + next++ % 12'000};
    try {
      dtrun::ops::ListenOn(place, "a test");
      return place;
    } catch (const Error&) {  // taken
    }
  }
}

std::string CodeText(ErrorCode code) { return Text(static_cast<int>(code), ": "); }

// What rank 0 says, and ranks say, through `warn`.
struct StoreLines {
  std::mutex mutex;
  std::vector<std::string> all;

  std::function<void(const std::string&)> sink() {
    return [this](const std::string& line) {
      const std::lock_guard lock(mutex);
      all.push_back(line);
    };
  }
  std::vector<std::string> With(const std::string& text) {
    const std::lock_guard lock(mutex);
    std::vector<std::string> found;
    for (const std::string& line : all)
      if (line.find(text) != std::string::npos) found.push_back(line);
    return found;
  }
  void Await(const std::string& text) {
    while (With(text).empty()) std::this_thread::sleep_for(5ms);
  }
};

// Runs a rank in a thread. `Error()` is "<code>: <text>", or "" if the rank succeeds.
class RankThread {
 public:
  RankThread(StoreMeeting meeting, std::function<void(Bootstrap&)> rank_main)
      : thread_([this, meeting = std::move(meeting), rank_main = std::move(rank_main)] {
          try {
            const auto bootstrap = JoinAtStore(meeting);
            rank_main(*bootstrap);
          } catch (const dtrun::Error& error) {
            error_ = Text(static_cast<int>(error.code()), ": ", error.what());
          }
        }) {}
  ~RankThread() {
    if (thread_.joinable()) thread_.join();
  }
  std::string Error() {
    thread_.join();
    return error_;
  }

 private:
  std::string error_;
  std::thread thread_;
};

std::vector<std::string> ErrorsAtStore(
    const std::vector<StoreMeeting>& meetings, const std::function<void(Bootstrap&)>& rank_main) {
  std::vector<std::unique_ptr<RankThread>> ranks;
  for (const StoreMeeting& meeting : meetings)
    ranks.push_back(std::make_unique<RankThread>(meeting, rank_main));
  std::vector<std::string> errors;
  for (const auto& rank : ranks) errors.push_back(rank->Error());
  return errors;
}

std::vector<StoreMeeting> StoreMeetings(
    int size, const std::string& secret = "a secret", std::chrono::seconds timeout = 120s) {
  const TcpPlace place = FreePlace();
  std::vector<StoreMeeting> meetings;
  for (int rank = 0; rank < size; ++rank) {
    meetings.push_back(
        {.place = place,
         .name = "the job",
         .rank = rank,
         .size = size,
         .secret = secret,
         .timeout = timeout});
  }
  return meetings;
}

void GatherRanks(Bootstrap& bootstrap) {
  const auto all = bootstrap.AllGather(Text("rank ", bootstrap.rank()));
  for (int r = 0; r < bootstrap.size(); ++r)
    if (all.at(static_cast<size_t>(r)) != Text("rank ", r))
      throw Error(ErrorCode::kSystem, "wrong");
}

void MustNotJoin(Bootstrap&) { throw Error(ErrorCode::kSystem, "joined"); }

// ---- Gathers ------------------------------------------------------------------------------------

TEST_CASE("at a store every rank gets the bytes of all ranks at any length and repeatedly") {
  const int size = GENERATE(1, 2, 3, 8, 64);
  const std::string secret = GENERATE("", "a secret");
  const auto errors = ErrorsAtStore(StoreMeetings(size, secret), [size](Bootstrap& bootstrap) {
    for (int round = 0; round < 10; ++round) {
      const auto part = [round, size](int rank) {
        const int length = (rank + round) % 3 * (round == 5 ? 400'000 / size : 7);
        return std::string(static_cast<size_t>(length), static_cast<char>('a' + rank % 26));
      };
      std::vector<std::string> expected;
      for (int r = 0; r < size; ++r) expected.push_back(part(r));
      if (bootstrap.size() != size || bootstrap.AllGather(part(bootstrap.rank())) != expected)
        throw Error(ErrorCode::kSystem, "wrong");
    }
  });
  CHECK(errors == std::vector<std::string>(static_cast<size_t>(size)));
}

TEST_CASE("ranks of one host that met at a store can map the memory of each other") {
  const auto errors = ErrorsAtStore(StoreMeetings(3), [](Bootstrap& bootstrap) {
    const auto exchange = bootstrap.ConnectSegmentExchange(bootstrap);
    auto mine = dtrun::ops::Segment::Create(4096);
    mine->data()[0] = static_cast<char>('0' + bootstrap.rank());
    const auto all = exchange->AllGather(mine);
    for (size_t r = 0; r < 3; ++r)
      if (all[r]->data()[0] != static_cast<char>('0' + r))
        throw Error(ErrorCode::kSystem, "wrong memory");
  });
  CHECK(errors == std::vector<std::string>(3));
}

TEST_CASE("a gather at a store above its limit is refused on all ranks") {
  auto meetings = StoreMeetings(3);
  for (StoreMeeting& meeting : meetings) meeting.most_bytes = 1000;
  const auto gather = [](size_t bytes) {
    return [bytes](Bootstrap& bootstrap) { bootstrap.AllGather(std::string(bytes, 'x')); };
  };
  CHECK(ErrorsAtStore(meetings, gather(333)) == std::vector<std::string>(3));
  for (const std::string& error : ErrorsAtStore(meetings, gather(334)))
    CHECK(
        error ==
        CodeText(ErrorCode::kSystem) + "the ranks bring 1002 bytes to Init; expected at most 1000");
  CHECK_THAT(
      ErrorsAtStore(meetings, gather(1001))[1],
      Catch::Contains("brings 1001 bytes to Init; expected at most 1000"));
}

// ---- Ranks that do not come, or are not the expected ones
// -----------------------------------------

TEST_CASE("at a store one warning and the timeout of every waiting rank name the missing ranks") {
  auto meetings = StoreMeetings(5, "a secret", 2s);
  StoreLines lines;
  for (StoreMeeting& meeting : meetings) {
    meeting.warning_after = 0s;
    meeting.warn = lines.sink();
  }
  const auto errors = ErrorsAtStore({meetings[0], meetings[2], meetings[4]}, MustNotJoin);
  const std::string late = "waited 2 s for ranks 1 and 3 of 5 to call Init";
  CHECK(errors[0] == CodeText(ErrorCode::kTimeout) + late);
  // A rank that a slow machine starts late misses the meeting.
  const auto is_late = Catch::Matchers::Contains("waited 2 s for rank");
  CHECK_THAT(errors[1], is_late);
  CHECK_THAT(errors[2], is_late);
  CHECK(lines.With("of 5 to call Init").size() == 1);
}

TEST_CASE("a rank without rank 0 names its address and the cause") {
  auto meetings = StoreMeetings(2, "a secret", 1s);
  const std::string place = meetings[0].place.Name();
  CHECK(
      ErrorsAtStore({meetings[1]}, MustNotJoin)[0] ==
      CodeText(ErrorCode::kTimeout) + "waited 1 s for rank 0 (" + place +
          ") to call Init; the last attempt to connect failed: Connection refused");
  meetings[1].place.host = "no-such-host.invalid";
  CHECK_THAT(
      ErrorsAtStore({meetings[1]}, MustNotJoin)[0],
      Catch::StartsWith(CodeText(ErrorCode::kTimeout)) &&
          Catch::Contains("cannot resolve the host of rank 0, no-such-host.invalid: "));
}

TEST_CASE("ranks may come before rank 0 listens") {
  const auto meetings = StoreMeetings(3);
  RankThread second(meetings[2], GatherRanks), first(meetings[1], GatherRanks);
  std::this_thread::sleep_for(300ms);
  RankThread hub(meetings[0], GatherRanks);
  CHECK(hub.Error() + first.Error() + second.Error() == "");
}

TEST_CASE("rank 0 names the address that another process has taken") {
  auto meetings = StoreMeetings(2);
  TcpPlace place = meetings[0].place;
  const FileDescriptor taken = dtrun::ops::ListenOn(place, "a test");
  CHECK(
      ErrorsAtStore({meetings[0]}, MustNotJoin)[0] == CodeText(ErrorCode::kSystem) +
                                                          "bind of rank 0 at " + place.Name() +
                                                          " failed: Address already in use");
}

TEST_CASE("listeners share the ports of a range and the last one names the range") {
  const int first = FreePlace().port;  // the ports after it may be taken
  const dtrun::base::PortRange ports = {first, first + 9};
  std::vector<FileDescriptor> sockets;
  std::vector<int> taken;
  std::string refusal;
  for (int rank = 0; refusal.empty(); ++rank) try {
      TcpPlace place = {"127.0.0.1", 0};
      sockets.push_back(dtrun::ops::ListenIn(ports, rank, place, "this rank"));
      taken.push_back(place.port);
    } catch (const Error& error) {
      refusal = error.what();
    }
  REQUIRE(!taken.empty());
  CHECK(taken.front() == first);
  std::sort(taken.begin(), taken.end());
  CHECK(std::adjacent_find(taken.begin(), taken.end()) == taken.end());
  CHECK((taken.front() >= ports.first && taken.back() <= ports.last));
  CHECK(
      refusal ==
      Text(
          "no port of ", first, "-", first + 9,
          " is free at 127.0.0.1 for this rank; expected one for each rank of the host"));
}

TEST_CASE("the port of a store is free after all ranks have come") {
  const auto meetings = StoreMeetings(2);
  const auto errors = ErrorsAtStore(meetings, [&](Bootstrap& bootstrap) {
    TcpPlace place = meetings[0].place;
    if (bootstrap.rank() == 1) dtrun::ops::ListenOn(place, "a test");
    GatherRanks(bootstrap);
  });
  CHECK(errors == std::vector<std::string>(2));
}

TEST_CASE("at a store two processes with the same rank are refused with their addresses") {
  auto meetings = StoreMeetings(3, "a secret", 60s);
  meetings[2].rank = 1;
  for (const std::string& error : ErrorsAtStore(meetings, MustNotJoin))
    CHECK_THAT(
        error,
        Catch::StartsWith(
            CodeText(ErrorCode::kInvalidArgument) + "two processes are rank 1: 127.0.0.1:") &&
            Catch::Contains(" and 127.0.0.1:"));
}

TEST_CASE("at a store ranks that expect different numbers of ranks are refused") {
  auto meetings = StoreMeetings(2);
  meetings[1].size = 3;
  for (const std::string& error : ErrorsAtStore(meetings, MustNotJoin))
    CHECK_THAT(
        error, Catch::StartsWith(CodeText(ErrorCode::kMismatch) + "rank 0 (127.0.0.1:") &&
                   Catch::Contains(") expects 2 ranks, but rank 1 (127.0.0.1:") &&
                   Catch::EndsWith(") expects 3"));
}

TEST_CASE("a rank or a port out of range is refused") {
  auto meetings = StoreMeetings(2);
  meetings[1].rank = 2;
  CHECK_THAT(
      ErrorsAtStore({meetings[1]}, MustNotJoin)[0],
      Catch::StartsWith(CodeText(ErrorCode::kInvalidArgument)));
  meetings[0].place.port = 0;
  CHECK_THAT(
      ErrorsAtStore({meetings[0]}, MustNotJoin)[0],
      Catch::StartsWith(CodeText(ErrorCode::kInvalidArgument)));
}

// ---- Ranks that end -----------------------------------------------------------------------------

TEST_CASE("a rank that ends after it met the others at a store ends the gather of all ranks") {
  const int victim = GENERATE(0, 2);
  const std::string secret = GENERATE("", "a secret");
  const auto errors = ErrorsAtStore(StoreMeetings(4, secret), [victim](Bootstrap& bootstrap) {
    bootstrap.AllGather("");
    if (bootstrap.rank() == victim) return;
    bootstrap.AllGather("");
  });
  for (int rank = 0; rank < 4; ++rank)
    if (rank != victim)
      CHECK_THAT(
          errors[static_cast<size_t>(rank)],
          Catch::StartsWith(
              CodeText(ErrorCode::kPeerLost) + Text("rank ", victim, " (127.0.0.1:")) &&
              Catch::EndsWith(") ended during Init"));
}

// Connects from a loopback address to rank 0, and retries until rank 0 listens.
FileDescriptor Connected(const TcpPlace& place, const char* from = "127.0.0.1") {
  for (;;) {
    FileDescriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in own{}, to{};
    own.sin_family = to.sin_family = AF_INET;
    ::inet_pton(AF_INET, from, &own.sin_addr);
    ::inet_pton(AF_INET, place.host.c_str(), &to.sin_addr);
    to.sin_port = htons(static_cast<uint16_t>(place.port));
    REQUIRE(::bind(socket.get(), reinterpret_cast<const sockaddr*>(&own), sizeof own) == 0);
    if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&to), sizeof to) == 0)
      return socket;
    std::this_thread::sleep_for(5ms);
  }
}

void SendBytes(const FileDescriptor& socket, const std::string& bytes) {
  ::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
}

// Plays rank 0 at another address, and returns the greeting of a real rank.
std::string RecordedGreeting(StoreMeeting meeting) {
  meeting.place = FreePlace();
  meeting.timeout = 1s;
  const FileDescriptor listener = dtrun::ops::ListenOn(meeting.place, "a test");
  RankThread rank(meeting, MustNotJoin);
  pollfd file{listener.get(), POLLIN, 0};
  REQUIRE(::poll(&file, 1, -1) == 1);
  FrameStream stream(dtrun::ops::AcceptTcp(listener.get()), 1000, "a rank");
  stream.Send({FrameKind::kChallenge, 0, std::string(32, 'c')});
  REQUIRE(stream.Flush());
  std::string greeting(kGreetingSize, '\0');
  for (size_t had = 0; had < greeting.size();) {
    pollfd readable{stream.socket(), POLLIN, 0};
    REQUIRE(::poll(&readable, 1, -1) == 1);
    const ssize_t got = ::recv(stream.socket(), &greeting[had], greeting.size() - had, 0);
    REQUIRE(got > 0);
    had += static_cast<size_t>(got);
  }
  return greeting;
}

TEST_CASE("a rank that is lost during the meeting at a store ends the wait at once") {
  // Rank 3 never comes, so the meeting cannot end before rank 0 sees the end of rank 2.
  const auto meetings = StoreMeetings(4, "a secret", 20s);
  RankThread hub(meetings[0], MustNotJoin), first(meetings[1], MustNotJoin);
  {  // rank 2 proves itself and ends
    dtrun::ops::TcpPlace place = FreePlace();
    StoreMeeting second = meetings[2];
    const FileDescriptor listener = dtrun::ops::ListenOn(place, "a test");
    const TcpPlace real = second.place;
    second.place = place;
    second.timeout = 1s;
    RankThread rank(second, MustNotJoin);
    pollfd file{listener.get(), POLLIN, 0};
    REQUIRE(::poll(&file, 1, -1) == 1);
    const FileDescriptor guest = dtrun::ops::AcceptTcp(listener.get());
    const FileDescriptor to_hub = Connected(real);
    // A relay carries one frame each way, and ends both connections.
    for (int i = 0; i < 2; ++i) {
      const auto carry = [](int from, int to, size_t bytes) {
        std::string frame(bytes, '\0');
        pollfd readable{from, POLLIN, 0};
        REQUIRE(::poll(&readable, 1, -1) == 1);
        REQUIRE(::recv(from, frame.data(), bytes, MSG_WAITALL) == static_cast<ssize_t>(bytes));
        REQUIRE(::send(to, frame.data(), bytes, MSG_NOSIGNAL) == static_cast<ssize_t>(bytes));
      };
      if (i == 0) carry(to_hub.get(), guest.get(), 24 + 32);
      if (i == 1) carry(guest.get(), to_hub.get(), kGreetingSize);
    }
  }
  const auto names_it =
      Catch::Matchers::StartsWith(CodeText(ErrorCode::kPeerLost) + "rank 2 (127.0.0.1:");
  CHECK_THAT(hub.Error(), names_it);
  // If rank 1 comes after rank 0 has ended, it finds no rank 0.
  CHECK_THAT(first.Error(), names_it || Catch::StartsWith(CodeText(ErrorCode::kTimeout)));
}

// ---- Secrets and networks -----------------------------------------------------------------------

TEST_CASE(
    "rank 0 refuses a rank of another job and one with a wrong secret and still meets its own") {
  const auto meetings = StoreMeetings(2);
  StoreLines lines;
  StoreMeeting with_lines = meetings[0], other = meetings[1];
  with_lines.warn = lines.sink();
  RankThread hub(with_lines, GatherRanks);
  std::string reason;
  SECTION("another job") {
    other.name = "another job";
    reason = "the process belongs to another job";
    CHECK_THAT(
        RankThread(other, MustNotJoin).Error(),
        Catch::StartsWith(CodeText(ErrorCode::kMismatch)) && Catch::Contains(reason));
  }
  SECTION("a wrong secret or none") {
    other.secret = GENERATE("another secret", "");
    reason = "the process does not know the secret of this job";
    CHECK_THAT(
        RankThread(other, MustNotJoin).Error(),
        Catch::StartsWith(CodeText(ErrorCode::kUnavailable)) && Catch::Contains(reason));
  }
  RankThread rank(meetings[1], GatherRanks);
  CHECK(hub.Error() + rank.Error() == "");
  CHECK(lines.With("closed a connection from 127.0.0.1:").size() == 1);
  CHECK(lines.With(reason).size() == 1);
}

TEST_CASE("a rank refuses a rank 0 that does not know the secret") {
  StoreMeeting meeting = StoreMeetings(2)[1];
  const FileDescriptor listener = dtrun::ops::ListenOn(meeting.place, "a test");
  RankThread rank(meeting, MustNotJoin);
  pollfd file{listener.get(), POLLIN, 0};
  REQUIRE(::poll(&file, 1, -1) == 1);
  FrameStream stream(dtrun::ops::AcceptTcp(listener.get()), 1000, "a rank");
  const auto answer = GENERATE(FrameKind::kProven, FrameKind::kAllHere);
  stream.Send({FrameKind::kChallenge, 0, std::string(32, 'c')});
  stream.Send({answer, 0, std::string(32, '\0')});
  REQUIRE(stream.Flush());
  CHECK_THAT(
      rank.Error(), answer == FrameKind::kProven
                        ? Catch::Contains("does not know the secret of this job")
                        : Catch::Contains("another program listens at the address of rank 0"));
}

TEST_CASE("without a secret only loopback and trusted networks are trusted") {
  using dtrun::ops::IsTrusted;
  const auto networks = dtrun::base::ParseAddressBlocks("10.1.0.0/16,192.168.7.9/32");
  for (const char* trusted : {"127.0.0.1", "127.9.8.7", "::1", "10.1.255.3", "192.168.7.9"})
    CHECK(IsTrusted(trusted, networks));
  for (const char* stranger : {"10.2.0.1", "192.168.7.8", "8.8.8.8", "fe80::1", "", "::2"})
    CHECK_FALSE(IsTrusted(stranger, networks));
  CHECK_FALSE(IsTrusted("10.1.0.1", {}));
}

// An address of this host outside the loopback; "" if there is none.
std::string OuterAddress() {
  std::string found;
  ifaddrs* all = nullptr;
  if (::getifaddrs(&all) != 0) return found;
  for (const ifaddrs* each = all; each != nullptr; each = each->ifa_next) {
    if (each->ifa_addr == nullptr || each->ifa_addr->sa_family != AF_INET) continue;
    char text[INET_ADDRSTRLEN] = "";
    const auto* address = reinterpret_cast<const sockaddr_in*>(each->ifa_addr);
    ::inet_ntop(AF_INET, &address->sin_addr, text, sizeof text);
    if (!dtrun::ops::IsTrusted(text, {})) found = text;
  }
  ::freeifaddrs(all);
  return found;
}

TEST_CASE("without a secret rank 0 refuses ranks from networks that it does not trust") {
  const std::string address = OuterAddress();
  if (address.empty()) {
    WARN("SKIPPED: this host has no address besides its loopback");
    return;
  }
  auto meetings = StoreMeetings(2, "", 3s);
  for (StoreMeeting& meeting : meetings) meeting.place = FreePlace(address);
  meetings[1].place = meetings[0].place;
  CHECK_THAT(
      ErrorsAtStore(meetings, MustNotJoin)[1],
      Catch::StartsWith(CodeText(ErrorCode::kUnavailable)) &&
          Catch::Contains("the address is on no trusted network"));
  meetings[0].timeout = meetings[1].timeout = 60s;
  meetings[0].trusted = dtrun::base::ParseAddressBlocks(address + "/32");
  CHECK(ErrorsAtStore(meetings, GatherRanks) == std::vector<std::string>(2));
}

TEST_CASE("a frame that the network alters ends the gather") {
  const auto meetings = StoreMeetings(2);
  StoreMeeting relayed = meetings[1];
  relayed.place = FreePlace();
  const FileDescriptor listener = dtrun::ops::ListenOn(relayed.place, "a test");
  RankThread hub(meetings[0], GatherRanks), rank(relayed, GatherRanks);
  pollfd waiting{listener.get(), POLLIN, 0};
  REQUIRE(::poll(&waiting, 1, -1) == 1);
  const FileDescriptor guest = dtrun::ops::AcceptTcp(listener.get());
  const FileDescriptor to_hub = Connected(meetings[0].place);
  constexpr size_t kAltered = kGreetingSize + 24 + 3;  // in the bytes of the first gather
  size_t carried = 0;
  for (bool open = true; open;) {
    pollfd files[] = {{guest.get(), POLLIN, 0}, {to_hub.get(), POLLIN, 0}};
    REQUIRE(::poll(files, 2, -1) > 0);
    for (int i = 0; i < 2; ++i) {
      if (files[i].revents == 0) continue;
      char bytes[512];
      const ssize_t got = ::recv(files[i].fd, bytes, sizeof bytes, 0);
      if (got <= 0) open = false;
      if (got <= 0) break;
      for (ssize_t at = 0; i == 0 && at < got; ++at, ++carried)
        if (carried == kAltered) bytes[at] ^= 1;
      ::send(files[1 - i].fd, bytes, static_cast<size_t>(got), MSG_NOSIGNAL);
    }
  }
  ::shutdown(guest.get(), SHUT_RDWR);
  ::shutdown(to_hub.get(), SHUT_RDWR);
  for (const std::string& error : {hub.Error(), rank.Error()})
    CHECK_THAT(
        error, Catch::StartsWith(CodeText(ErrorCode::kSystem)) &&
                   Catch::Contains("a message from rank 1") && Catch::Contains("wrong seal"));
}

// ---- Strangers ----------------------------------------------------------------------------------

TEST_CASE("a hundred strangers of every kind do not disturb ranks that meet at a store") {
  auto meetings = StoreMeetings(4);
  const std::string replayed = RecordedGreeting(meetings[2]);
  std::string forged = replayed, huge = replayed;
  forged.back() = static_cast<char>(forged.back() ^ 1);
  huge[22] = 'x';  // the high bytes of the length
  StoreLines lines;
  meetings[0].warn = lines.sink();
  RankThread hub(meetings[0], GatherRanks);
  std::vector<FileDescriptor> strangers, slow;
  for (int i = 0; i < 15; ++i) {
    const std::string openings[] = {
        replayed, forged, huge, "GET / HTTP/1.1\r\n\r\n", std::string(5000, 'g'), ""};
    for (const std::string& opening : openings) {
      strangers.push_back(Connected(meetings[0].place));
      SendBytes(strangers.back(), opening);
    }
    slow.push_back(Connected(meetings[0].place));
  }
  const FileDescriptor elsewhere = Connected(meetings[0].place, "127.0.0.2");
  SendBytes(elsewhere, "SSH-2.0-OpenSSH_9.2\r\nand more than a header");
  std::atomic<bool> done{false};
  std::thread dripping([&] {
    for (size_t at = 0; !done && at < replayed.size(); ++at) {
      for (const FileDescriptor& socket : slow) SendBytes(socket, replayed.substr(at, 1));
      std::this_thread::sleep_for(10ms);
    }
  });
  lines.Await("127.0.0.2");
  {
    RankThread first(meetings[1], GatherRanks), second(meetings[2], GatherRanks),
        third(meetings[3], GatherRanks);
    CHECK(hub.Error() + first.Error() + second.Error() + third.Error() == "");
  }
  done = true;
  dripping.join();
  CHECK(lines.With("closed a connection from 127.0.0.1:").size() == 1);
  CHECK(lines.With("closed a connection from 127.0.0.2:").size() == 1);
}

TEST_CASE("more silent connections than rank 0 keeps do not keep a rank away") {
  auto meetings = StoreMeetings(2);
  StoreLines lines;
  meetings[0].warn = lines.sink();
  RankThread hub(meetings[0], GatherRanks);
  std::vector<FileDescriptor> silent;
  for (int i = 0; i < 300; ++i) silent.push_back(Connected(meetings[0].place));
  lines.Await("too many processes have connected without a greeting");
  RankThread rank(meetings[1], GatherRanks);
  CHECK(hub.Error() + rank.Error() == "");
}

}  // namespace
