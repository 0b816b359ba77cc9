// The bootstrap of ranks on one host, which find each other by a name. Ranks are threads or
// processes.

#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "base/text.h"
#include "dtrun/error.h"
#include "ops/bootstrap/bootstrap.h"
#include "ops/bootstrap/segment.h"

namespace {

using dtrun::Error;
using dtrun::ErrorCode;
using dtrun::base::Text;
using dtrun::ops::Bootstrap;
using dtrun::ops::JoinLocally;
using dtrun::ops::LocalMeeting;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
using Texts = std::vector<std::string>;

// A name that is unique over tests and runs.
std::string NewName() {
  static int count = 0;
  return Text("test ", getpid(), ' ', Clock::now().time_since_epoch().count(), ' ', ++count);
}

// The error of each rank, as "<code>: <text>"; "" if the rank succeeds.
Texts RunThreads(
    const std::vector<LocalMeeting>& meetings, const std::function<void(Bootstrap&)>& rank_main) {
  Texts errors(meetings.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < meetings.size(); ++i) {
    threads.emplace_back([&, i] {
      try {
        const auto bootstrap = JoinLocally(meetings[i]);
        rank_main(*bootstrap);
      } catch (const Error& error) {
        errors[i] = Text(static_cast<int>(error.code()), ": ", error.what());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

std::vector<LocalMeeting> Meetings(int size, std::chrono::seconds timeout = 20s) {
  const std::string name = NewName();
  std::vector<LocalMeeting> meetings;
  for (int rank = 0; rank < size; ++rank)
    meetings.push_back({.name = name, .rank = rank, .size = size, .timeout = timeout});
  return meetings;
}

std::string Code(ErrorCode code) { return Text(static_cast<int>(code), ": "); }

TEST_CASE("every rank gets the bytes of all ranks at any length and repeatedly") {
  const int size = GENERATE(1, 2, 3, 8, 100);
  const Texts errors = RunThreads(Meetings(size), [size](Bootstrap& bootstrap) {
    for (int round = 0; round < 20; ++round) {
      const auto length = [round, size](int rank) {
        return static_cast<size_t>((rank + round) % 3 * (round == 5 ? 400'000 / size : 7));
      };
      Texts expected;
      for (int r = 0; r < size; ++r) expected.push_back(std::string(length(r), 'a'));
      if (bootstrap.size() != size ||
          bootstrap.AllGather(std::string(length(bootstrap.rank()), 'a')) != expected)
        throw Error(ErrorCode::kSystem, "wrong");
    }
  });
  CHECK(errors == Texts(static_cast<size_t>(size)));
}

TEST_CASE("every rank can map the memory of the other ranks") {
  const Texts errors = RunThreads(Meetings(3), [](Bootstrap& bootstrap) {
    const auto exchange = bootstrap.ConnectSegmentExchange(bootstrap);
    auto mine = dtrun::ops::Segment::Create(4096);
    mine->data()[0] = static_cast<char>('0' + bootstrap.rank());
    const auto all = exchange->AllGather(mine);
    for (size_t r = 0; r < 3; ++r)
      if (all[r]->data()[0] != static_cast<char>('0' + r))
        throw Error(ErrorCode::kSystem, "wrong memory");
  });
  CHECK(errors == Texts(3));
}

TEST_CASE("populated memory is resident and zero and aligned to huge pages") {
  constexpr uint64_t kHuge = 2 << 20, kBytes = 3 * kHuge + 5;
  const auto segment = dtrun::ops::Segment::Create(kBytes);
  const auto resident = [&] {
    const uint64_t page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
    std::vector<unsigned char> pages(kBytes / page + 1);
    REQUIRE(::mincore(segment->data(), kBytes, pages.data()) == 0);
    return page * static_cast<uint64_t>(
                      std::count_if(pages.begin(), pages.end(), [](auto p) { return p & 1; }));
  };
  CHECK(resident() == 0);
  segment->Populate(0, 2);
  CHECK(resident() == kHuge);
  segment->Populate(1, 2);
  CHECK(resident() == 3 * kHuge);
  CHECK(std::count(segment->data(), segment->data() + kBytes, 0) == int64_t{kBytes});
  CHECK(reinterpret_cast<uintptr_t>(segment->data()) % kHuge == 0);
  // A second mapping shows the writes of the first mapping at every place.
  const auto peers =
      dtrun::ops::Segment::Map(dtrun::ops::FileDescriptor(::dup(segment->fd())), kBytes);
  CHECK(reinterpret_cast<uintptr_t>(peers->data()) % kHuge == 0);
  for (const uint64_t place : {uint64_t{0}, kHuge - 1, kHuge, kBytes - 1}) {
    segment->data()[place] = 'x';
    CHECK(peers->data()[place] == 'x');
  }
}

TEST_CASE("one warning and the timeout of every waiting rank name the missing ranks") {
  std::vector<LocalMeeting> meetings = Meetings(5, 4s);
  std::mutex mutex;
  Texts warnings;
  for (LocalMeeting& meeting : meetings) {
    meeting.warning_after = 0s;
    meeting.warn = [&](const std::string& text) {
      std::lock_guard lock(mutex);
      warnings.push_back(text);
    };
  }
  const Texts errors =
      RunThreads({meetings[0], meetings[2], meetings[4]}, [](Bootstrap&) { FAIL("joined"); });
  for (const std::string& error : errors)
    CHECK(error == Code(ErrorCode::kTimeout) + "waited 4 s for ranks 1 and 3 of 5 to call Init");
  CHECK(warnings.size() == 1);
}

TEST_CASE("two processes with the same rank or different numbers of ranks are refused") {
  std::vector<LocalMeeting> meetings = Meetings(3, 2s);
  meetings[2].rank = 1;
  const Texts errors = RunThreads(meetings, [](Bootstrap&) { FAIL("joined"); });
  const std::string refused = Code(ErrorCode::kInvalidArgument) + "two processes are rank 1: ";
  CHECK_THAT(errors[1], Catch::StartsWith(refused));
  CHECK_THAT(errors[2], Catch::StartsWith(refused));
  // Rank 0 may come after the other two have met and ended.
  CHECK_THAT(errors[0], Catch::StartsWith(refused) || Catch::StartsWith(Code(ErrorCode::kTimeout)));

  meetings = Meetings(2);
  meetings[1].size = 3;
  for (const std::string& error : RunThreads(meetings, [](Bootstrap&) { FAIL("joined"); }))
    CHECK_THAT(
        error, Catch::StartsWith(Code(ErrorCode::kMismatch)) && Catch::Contains(" ranks, but "));
}

TEST_CASE("a rank that ends during Init ends Init on all ranks with an error that names it") {
  const Texts errors = RunThreads(Meetings(4), [](Bootstrap& bootstrap) {
    bootstrap.AllGather("");
    if (bootstrap.rank() == 2) return;
    bootstrap.AllGather("");
  });
  for (const int rank : {0, 1, 3})
    CHECK_THAT(
        errors[static_cast<size_t>(rank)],
        Catch::StartsWith(Code(ErrorCode::kPeerLost) + "rank 2 (process ") &&
            Catch::EndsWith(") ended during Init"));
}

// Starts a process that runs `rank_main` as a rank. The process ends by exit or by SIGKILL.
pid_t Fork(const LocalMeeting& meeting, const std::function<void(Bootstrap&)>& rank_main) {
  const pid_t child = fork();
  if (child != 0) return child;
  try {
    const auto bootstrap = JoinLocally(meeting);
    rank_main(*bootstrap);
  } catch (const std::exception&) {
    _exit(1);
  }
  _exit(0);
}

int StatusOf(pid_t process) {
  int status = 0;
  waitpid(process, &status, 0);
  return status;
}

TEST_CASE("the other ranks name a killed process whichever rank it has") {
  const std::vector<LocalMeeting> meetings = Meetings(3, 60s);
  const int victim = GENERATE(0, 1, 2);
  std::vector<pid_t> processes;
  for (int rank = 0; rank < 3; ++rank)
    processes.push_back(Fork(meetings[static_cast<size_t>(rank)], [=](Bootstrap& bootstrap) {
      bootstrap.AllGather("together");
      if (rank == victim) kill(getpid(), SIGKILL);
      try {
        bootstrap.AllGather("");
      } catch (const Error& error) {
        const bool named = error.code() == ErrorCode::kPeerLost &&
                           std::string(error.what()).starts_with(Text("rank ", victim, " "));
        _exit(named ? 42 : 43);
      }
    }));
  for (int rank = 0; rank < 3; ++rank) {
    const int status = StatusOf(processes[static_cast<size_t>(rank)]);
    if (rank == victim) CHECK(WTERMSIG(status) == SIGKILL);
    if (rank != victim) CHECK(WEXITSTATUS(status) == 42);
  }
}

TEST_CASE("a name can be used again after its ranks were killed or have met") {
  const std::vector<LocalMeeting> meetings = Meetings(2, 60s);
  int ready[2];
  REQUIRE(pipe(ready) == 0);
  LocalMeeting first = meetings[0];
  first.warning_after = 0s;
  first.warn = [&](const std::string&) { CHECK(write(ready[1], "x", 1) == 1); };
  const pid_t alone = Fork(first, [](Bootstrap&) {});
  char byte;
  REQUIRE(read(ready[0], &byte, 1) == 1);  // rank 0 waits for rank 1
  kill(alone, SIGKILL);
  CHECK(WTERMSIG(StatusOf(alone)) == SIGKILL);
  close(ready[0]);
  close(ready[1]);
  for (int job = 0; job < 3; ++job) {
    CHECK(RunThreads(meetings, [](Bootstrap& bootstrap) { bootstrap.AllGather("x"); }) == Texts(2));
  }
}

TEST_CASE("a contribution above the limit of 16 MiB is refused") {
  const Texts errors = RunThreads(Meetings(2), [](Bootstrap& bootstrap) {
    bootstrap.AllGather(std::string(bootstrap.rank() == 0 ? 1 : (16 << 20) + 1, 'x'));
  });
  CHECK_THAT(errors[1], Catch::Contains("expected at most 16777216"));
  CHECK(errors[0] != "");
}

}  // namespace
