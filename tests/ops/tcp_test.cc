// What the backend over TCP does beside moving data: connections of strangers, lost ranks, and
// ranks that go on without them. The ranks are threads of this process.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "base/listen_filter.h"
#include "base/process.h"
#include "dtrun/error.h"
#include "ops/collective/host_map.h"
#include "ops/engine/progress_engine.h"
#include "ops/hierarchical/hierarchical_communicator.h"
#include "ops/self/self_communicator.h"
#include "ops/shm/shm_communicator.h"
#include "ops/tcp/tcp_handshake.h"
#include "ops/tcp/tcp_wire.h"
#include "ops/wire/wire.h"
#include "tests/support/thread_ranks.h"

namespace {

using dtrun::Buffer;
using dtrun::Error;
using dtrun::ErrorCode;
using dtrun::ReduceOp;
using dtrun::ops::Bootstrap;
using dtrun::ops::Communicator;
using dtrun::ops::Engine;
using dtrun::ops::Members;
using dtrun::ops::Work;
using dtrun::testing::Expect;
using dtrun::testing::RunRanks;

const dtrun::base::SteadyClock kClock;

std::unique_ptr<Engine> MakeEngine(dtrun::base::Duration timeout = std::chrono::seconds(60)) {
  return std::make_unique<Engine>(
      dtrun::ops::EngineOptions{.timeout = timeout, .may_spin = false}, kClock,
      [](auto, const auto&) {});
}

std::unique_ptr<Communicator> MakeTcp(Bootstrap& bootstrap, Engine& engine) {
  return dtrun::ops::tcp::CreateTcpCommunicator(
      bootstrap, engine, Members::World(bootstrap.size()), {.address = "127.0.0.1"});
}

// The sum of rank + 1 over all ranks, in a buffer that is too large for a header.
float SumOfRanks(Communicator& communicator, int rank, size_t count = 300'000) {
  std::vector<float> values(count, static_cast<float>(rank + 1));
  communicator.AllReduce(Buffer(values.data(), values.size()), ReduceOp::kSum);
  return values[0] == values[count - 1] ? values[0] : -1;
}

std::string ErrorOf(const std::function<void()>& call, ErrorCode code = ErrorCode::kPeerLost) {
  try {
    call();
  } catch (const Error& error) {
    Expect(error.code() == code, error.what());
    return error.what();
  }
  return "no error";
}

void ExpectText(const std::string& text, const std::string& part) {
  Expect(text.find(part) != std::string::npos, text);
}

TEST_CASE("a waker looks at its file only after the pause") {
  using namespace std::chrono_literals;
  const dtrun::ops::FileDescriptor ready(::eventfd(1, EFD_CLOEXEC));
  const auto segment = dtrun::ops::Segment::Create(sizeof(dtrun::ops::Doorbell));
  auto& doorbell = *reinterpret_cast<dtrun::ops::Doorbell*>(segment->data());
  dtrun::ops::wire::Waker waker(ready.get(), segment);
  const auto time_until_ring = [&](std::chrono::microseconds pause) {
    const auto begin = std::chrono::steady_clock::now();
    const uint32_t ticket = doorbell.Prepare();
    waker.Arm(pause);
    doorbell.Sleep(ticket, 60s);
    return std::chrono::steady_clock::now() - begin;
  };
  CHECK(time_until_ring(200ms) >= 200ms);
  CHECK(time_until_ring(0us) < 60s);
}

TEST_CASE("a rank that leaves is lost for all ranks, and the others go on without it") {
  constexpr int kRanks = 5;
  std::vector<std::string> told(kRanks);
  std::vector<float> sums(kRanks);
  const auto errors = RunRanks(kRanks, [&](Bootstrap& bootstrap) {
    const int rank = bootstrap.rank();
    const auto engine = MakeEngine();
    auto world = MakeTcp(bootstrap, *engine);
    Expect(SumOfRanks(*world, rank) == 15, "the sum of all ranks");
    if (rank == 2) return;
    told[static_cast<size_t>(rank)] = ErrorOf([&] { SumOfRanks(*world, rank); });
    ExpectText(ErrorOf([&] { world->Barrier(); }), "cannot be done any more: gave up");
    const auto left = world->Reform();
    sums[static_cast<size_t>(rank)] = SumOfRanks(*left, rank);
    Expect(left->rank() == (rank < 2 ? rank : rank - 1), "ranks in order");
    Expect(left->members().world_ranks == std::vector<int>{0, 1, 3, 4}, "the ranks that are left");
    left->Barrier();
  });
  CHECK(errors == std::vector<std::string>(kRanks));
  for (const int rank : {0, 1, 3, 4}) {
    CHECK(
        told[static_cast<size_t>(rank)] ==
        "gave up: collective #2, all_reduce (f32, 300000 elements, sum), cannot be finished: rank "
        "2 "
        "is lost: it has left the job");
    CHECK(sums[static_cast<size_t>(rank)] == 12);
  }
}

// A rank that is not there when the others need it: it has not called their operation, or it has
// called but moves no data.
TEST_CASE("after a timeout the ranks that come go on without the one that does not") {
  const bool has_called = GENERATE(false, true);
  std::vector<std::string> told(4);
  std::vector<float> sums(4);
  const auto errors = RunRanks(4, [&](Bootstrap& bootstrap) {
    const int rank = bootstrap.rank();
    const auto engine = MakeEngine(std::chrono::seconds(rank == 2 ? 60 : 1));
    auto world = MakeTcp(bootstrap, *engine);
    Expect(SumOfRanks(*world, rank) == 10, "the sum of all ranks");
    if (rank == 2) {
      std::vector<float> values(300'000);
      const Buffer buffer(values.data(), values.size());
      Work work;
      if (has_called) work = world->StartAllReduce(buffer, ReduceOp::kSum);
      std::this_thread::sleep_for(std::chrono::seconds(3));
      if (!has_called) work = world->StartAllReduce(buffer, ReduceOp::kSum);
      told[2] = ErrorOf([&] { work.Wait(); });
      ExpectText(ErrorOf([&] { world->Reform(); }), "go on without it");
      return;
    }
    told[static_cast<size_t>(rank)] =
        ErrorOf([&] { SumOfRanks(*world, rank); }, ErrorCode::kTimeout);
    const auto left = world->Reform();
    sums[static_cast<size_t>(rank)] = SumOfRanks(*left, rank);
    left->Barrier();
    std::this_thread::sleep_for(std::chrono::seconds(3));  // rank 2 hears of it
    engine->Poll();
  });
  CAPTURE(has_called);
  CHECK(errors == std::vector<std::string>(4));
  for (const size_t rank : {0, 1, 3}) {
    CHECK_THAT(
        told[rank],
        Catch::Contains(
            has_called ? "waits for rank 2 to finish it" : "waits for rank 2 to call it"));
    CHECK(sums[rank] == 7);
  }
  CHECK_THAT(
      told[2], Catch::Contains("rank 2 is lost: the other ranks go on without it, because it did "
                               "not answer them"));
}

TEST_CASE("a rank that keeps the headers of others back is the only one that is named") {
  constexpr int kRanks = 7;
  std::vector<std::string> warned(kRanks);
  const auto errors = RunRanks(kRanks, [&](Bootstrap& bootstrap) {
    const int rank = bootstrap.rank();
    std::string& own = warned[static_cast<size_t>(rank)];
    Engine engine(
        {.stall_warning = std::chrono::seconds(2), .may_spin = false}, kClock,
        [&own](auto, const std::string& text) { own += text; });
    const auto world = dtrun::ops::tcp::CreateTcpCommunicator(
        bootstrap, engine, Members::World(kRanks), {.address = "127.0.0.1", .relays_from = 2});
    Expect(SumOfRanks(*world, rank, 10) == 28, "the sum of all ranks");
    if (rank == 4) std::this_thread::sleep_for(std::chrono::seconds(3));
    Expect(SumOfRanks(*world, rank, 10) == 28, "the sum of all ranks");
    Expect(SumOfRanks(*world, rank) == 28, "the sum of all ranks");
    world->Barrier();
  });
  CHECK(errors == std::vector<std::string>(kRanks));
  for (const size_t rank : {0, 1, 2, 3, 5, 6})
    CHECK_THAT(warned[rank], Catch::EndsWith(", waits for rank 4 to call it"));
}

TEST_CASE("operations without the lost rank go on") {
  const auto errors = RunRanks(3, [&](Bootstrap& bootstrap) {
    const int rank = bootstrap.rank();
    const auto engine = MakeEngine();
    auto world = MakeTcp(bootstrap, *engine);
    auto pair = world->Subset({0, 1});
    world->Barrier();
    if (rank == 2) return;
    ExpectText(ErrorOf([&] { world->Barrier(); }), "rank 2 is lost");
    for (int i = 0; i < 10; ++i) Expect(SumOfRanks(*pair, rank) == 3, "the sum of the pair");
  });
  CHECK(errors == std::vector<std::string>(3));
}

TEST_CASE("ranks that share a host with a leader learn of a rank that only the leader needs") {
  constexpr int kRanks = 6;
  const std::vector<int> host_of_rank = {0, 0, 0, 1, 1, 1};
  std::vector<std::string> told(kRanks);
  const auto errors = RunRanks(kRanks, [&](Bootstrap& bootstrap) {
    const int rank = bootstrap.rank();
    const auto engine = MakeEngine();
    const dtrun::ops::HostMap hosts(host_of_rank);
    const Members members = Members::World(kRanks);
    const std::vector<int>& here = hosts.ranks(hosts.host(rank));
    dtrun::ops::SubsetBootstrap within_host(bootstrap, here);
    auto local = dtrun::ops::CreateShmCommunicator(within_host, *engine, members.Subset(here, ""));
    within_host.Finish();
    auto world = dtrun::ops::CreateHierarchicalCommunicator(
        std::move(local), MakeTcp(bootstrap, *engine), hosts, {}, *engine, members);
    Expect(SumOfRanks(*world, rank) == 21, "the sum of all ranks");
    if (rank == 3) return;
    told[static_cast<size_t>(rank)] = ErrorOf([&] { SumOfRanks(*world, rank); });
    const auto left = world->Reform();
    Expect(left->backend() == std::string("hierarchical"), "shared memory within the hosts");
    Expect(SumOfRanks(*left, rank) == 17, "the sum of the ranks that are left");
    if (rank == 0) return;
    ErrorOf([&] { SumOfRanks(*left, rank); });
    const auto fewer = left->Reform();
    Expect(SumOfRanks(*fewer, rank) == 16, "the sum of the last ranks");
    fewer->Barrier();
    if (rank == 1 || rank == 2) return;
    ErrorOf([&] { SumOfRanks(*fewer, rank); });
    const auto pair = fewer->Reform();
    Expect(SumOfRanks(*pair, rank) == 11, "the sum of the ranks of one host");
    pair->Barrier();
  });
  CHECK(errors == std::vector<std::string>(kRanks));
  for (const int rank : {0, 1, 2, 4, 5})
    CHECK(
        told[static_cast<size_t>(rank)] ==
        "gave up: collective #2, all_reduce (f32, 300000 elements, sum), cannot be finished: rank "
        "3 "
        "is lost: it has left the job");
}

// Counts the messages that have ended.
struct Counting : dtrun::ops::wire::Listener {
  void Ended(uint64_t) override { ++count; }
  int count = 0;
};

TEST_CASE("a message that is longer than its receive ends the connection, also if it came before") {
  const auto errors = RunRanks(2, [&](Bootstrap& bootstrap) {
    const auto engine = MakeEngine();
    dtrun::ops::tcp::TcpWire wire(bootstrap, *engine, {.address = "127.0.0.1"});
    const auto ended = std::make_shared<Counting>();
    uint64_t seen = 0;
    const auto poll_until = [&](const std::function<bool()>& done) {
      const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
      while (!done() && std::chrono::steady_clock::now() < deadline) wire.Poll(seen);
      Expect(done(), "the wire has come that far");
    };
    std::vector<char> bytes(100, static_cast<char>(1 + bootstrap.rank()));
    if (bootstrap.rank() == 0) {
      using Mode = dtrun::ops::wire::Wire::Mode;
      wire.Send(1, 1, bytes.data(), 100, Mode::kBuffered, ended, 0);
      wire.Send(1, 2, bytes.data(), 1, Mode::kBuffered, ended, 0);
      poll_until([&] { return !wire.lost().empty(); });
    } else {
      char last = 0;
      wire.Receive(0, 2, &last, 1, ended, 0);
      poll_until([&] { return ended->count == 1; });
      wire.Receive(0, 1, bytes.data(), 10, ended, 0);
      poll_until([&] { return !wire.lost().empty(); });
      ExpectText(wire.lost()[0].why, "it sent a message that is longer than expected");
      Expect(ended->count == 1 && bytes == std::vector<char>(100, 2), "nothing was written");
    }
  });
  CHECK(errors == std::vector<std::string>(2));
}

// The ports at which this process listens.
std::vector<int> Ports() {
  std::vector<int> ports;
  for (const int file : dtrun::base::ListeningSockets()) {
    sockaddr_in own = {};
    socklen_t length = sizeof own;
    ::getsockname(file, reinterpret_cast<sockaddr*>(&own), &length);
    ports.push_back(ntohs(own.sin_port));
  }
  return ports;
}

int ConnectAt(int port) {
  const int file = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  ::connect(file, reinterpret_cast<const sockaddr*>(&address), sizeof address);
  return file;
}

TEST_CASE("a hundred strangers at each port do not disturb the ranks") {
  constexpr int kRanks = 3;
  const auto errors = RunRanks(kRanks, [&](Bootstrap& bootstrap) {
    const int rank = bootstrap.rank();
    const auto engine = MakeEngine();
    const auto world = MakeTcp(bootstrap, *engine);
    // Before the ranks are connected, and while they exchange data.
    std::vector<int> files;
    for (int stranger = 0; rank == 0 && stranger < 100; ++stranger) {
      for (const int port : Ports()) {
        const int file = ConnectAt(port);
        const std::string texts[] = {
            "", "d", "GET / HTTP/1.1\r\n\r\n", std::string(1 << 20, '\0'),
            "dtrunTCP1" + std::string(40, '\x7f'),
            // a hello of rank 1 to rank 0, then no proof
            "dtrunTCP1" + std::string("\1\0\0\0\0\0\0\0", 8) + std::string(32, 'r') +
                std::string(32, 'p')};
        const std::string& text = texts[static_cast<size_t>(stranger) % std::size(texts)];
        [[maybe_unused]] const ssize_t sent =
            ::send(file, text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
        files.push_back(file);
      }
      Expect(SumOfRanks(*world, rank, 1000) == 6, "the sum beside strangers");
    }
    for (int i = 0; rank != 0 && i < 100; ++i)
      Expect(SumOfRanks(*world, rank, 1000) == 6, "the sum beside strangers");
    Expect(SumOfRanks(*world, rank) == 6, "the large sum beside strangers");
    for (const int file : files) ::close(file);
    world->Barrier();
  });
  CHECK(errors == std::vector<std::string>(kRanks));
}

// Moves a handshake between two ends on, until one of them ends.
std::pair<dtrun::ops::tcp::ClientHandshake::State, dtrun::ops::tcp::ServerHandshake::State>
ShakeHands(const std::string& client_key, const std::string& server_key, int called) {
  using dtrun::ops::tcp::ClientHandshake;
  using dtrun::ops::tcp::ServerHandshake;
  int files[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, files) == 0);
  ClientHandshake client(client_key, 1, called);
  ServerHandshake server(server_key, 0, 4);
  auto mine = ClientHandshake::State::kUnderWay;
  auto its = ServerHandshake::State::kUnderWay;
  for (int i = 0; i < 10; ++i) {
    if (mine == ClientHandshake::State::kUnderWay) mine = client.Continue(files[0]);
    if (its == ServerHandshake::State::kUnderWay) its = server.Continue(files[1]);
    if (its == ServerHandshake::State::kProven) {
      CHECK(server.peer() == 1);
      if (mine == ClientHandshake::State::kUnderWay) server.Tell(files[1], true);
    }
  }
  ::close(files[0]);
  ::close(files[1]);
  return {mine, its};
}

TEST_CASE("both ends of a connection prove that they know the key of the job") {
  using dtrun::ops::tcp::ClientHandshake;
  using dtrun::ops::tcp::ServerHandshake;
  CHECK(
      ShakeHands("key", "key", 0) ==
      std::pair(ClientHandshake::State::kTaken, ServerHandshake::State::kProven));
  CHECK(ShakeHands("key", "another", 0).first == ClientHandshake::State::kWrong);
  CHECK(ShakeHands("key", "another", 0).second == ServerHandshake::State::kUnderWay);
  CHECK(ShakeHands("key", "key", 2).second == ServerHandshake::State::kEnded);
}

}  // namespace
