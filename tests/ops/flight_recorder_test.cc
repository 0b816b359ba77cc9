#include "ops/engine/flight_recorder.h"

#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <filesystem>
#include <string>
#include <thread>

#include "base/flight_record.h"
#include "dtrun/error.h"
#include "ops/collective/collective.h"
#include "tests/support/subprocess.h"
#include "tests/support/text.h"

namespace {

using namespace dtrun;
using base::FlightOperation;
using base::FlightRecord;
using base::FlightState;
using ops::FlightRecorder;
using testing::ReadText;

base::Call AllReduceOf(uint64_t count) {
  return {
      .count = count,
      .before = 1,
      .after = 1,
      .root = 0,
      .divisor = 0,
      .kind = static_cast<uint8_t>(base::CollectiveKind::kAllReduce),
      .dtype = static_cast<uint8_t>(DType::kF32),
      .op = static_cast<uint8_t>(ReduceOp::kSum),
      .tables = 0,
  };
}

base::TimePoint At(int64_t ns) { return base::TimePoint(base::Duration(ns)); }

TEST_CASE("a record has the call and communicator and times and state of each operation") {
  const auto recorder = FlightRecorder::InMemory(3, "node1");
  const uint64_t first = recorder->Start("world", 7, AllReduceOf(4), At(100));
  recorder->Start("world/1", 1, AllReduceOf(5), At(200));
  recorder->Move(first);
  CHECK(recorder->Read().operations[0].state == FlightState::kMoving);
  recorder->End(first, FlightState::kDone, At(300));

  const FlightRecord record = recorder->Read();
  CHECK(record.rank == 3);
  CHECK(record.host == "node1");
  CHECK(record.pid == getpid());
  REQUIRE(record.operations.size() == 2);
  const FlightOperation& done = record.operations[0];
  CHECK(done.communicator == "world");
  CHECK(done.sequence == 7);
  CHECK(base::Describe(done.call) == "all_reduce (f32, 4 elements, sum)");
  CHECK(done.state == FlightState::kDone);
  CHECK(done.start_ns == 100);
  CHECK(done.end_ns == 300);
  CHECK(record.operations[1].communicator == "world/1");
  CHECK(record.operations[1].state == FlightState::kStarted);
}

TEST_CASE("a full ring drops the oldest operations") {
  const auto recorder = FlightRecorder::InMemory(0, "h");
  const uint64_t forgotten = recorder->Start("world", 1, AllReduceOf(1), At(1));
  for (uint64_t i = 2; i <= 1000; ++i) {
    recorder->End(recorder->Start("world", i, AllReduceOf(i), At(1)), FlightState::kDone, At(2));
  }
  // A newer operation has the entry by now, so these calls must have no effect.
  recorder->Move(forgotten);
  recorder->End(forgotten, FlightState::kFailed, At(9));
  const FlightRecord record = recorder->Read();
  REQUIRE(record.operations.size() == base::kFlightEntries);
  for (size_t i = 0; i < record.operations.size(); ++i) {
    CHECK(record.operations[i].sequence == 1000 - base::kFlightEntries + 1 + i);
    CHECK(record.operations[i].state == FlightState::kDone);
  }
}

TEST_CASE("a long name is truncated and later short names are complete") {
  const auto recorder = FlightRecorder::InMemory(0, "h");
  const std::string name(100, 'x');
  recorder->Start(name, 1, AllReduceOf(1), At(1));
  CHECK(recorder->Read().operations[0].communicator == name.substr(0, 55));
  for (uint64_t i = 0; i < base::kFlightEntries; ++i) {
    recorder->Start(std::string(i % 56, 'y'), 2, AllReduceOf(1), At(1));
  }
  const FlightRecord record = recorder->Read();
  for (uint64_t i = 0; i < base::kFlightEntries; ++i) {
    CHECK(record.operations[i].communicator == std::string(i % 56, 'y'));
  }
}

// All fields that the writer records for operation `ordinal` follow from `ordinal`.
std::string NameFor(uint64_t ordinal) {
  return std::string(ordinal % 50, static_cast<char>('a' + ordinal % 26));
}

bool IsWhole(const FlightOperation& operation) {
  const uint64_t ordinal = operation.sequence;
  const auto ns = static_cast<int64_t>(ordinal);
  const bool ended = operation.state >= FlightState::kDone;
  return operation.call.count == 3 * ordinal && operation.start_ns == ns &&
         (!ended || operation.end_ns == ns + 1) && operation.communicator == NameFor(ordinal);
}

TEST_CASE("a reader never sees a partly written operation of a live writer") {
  const auto recorder = FlightRecorder::InMemory(0, "h");
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    for (uint64_t i = 1; !stop; ++i) {
      const auto ns = static_cast<int64_t>(i);
      const uint64_t ordinal = recorder->Start(NameFor(i), i, AllReduceOf(3 * i), At(ns));
      if (i % 3 == 0) recorder->Move(ordinal);
      if (i % 5 != 0) recorder->End(ordinal, FlightState::kDone, At(ns + 1));
      if (i == 100'000) recorder->GiveUp("gave up");
    }
  });
  uint64_t seen = 0, torn = 0, unordered = 0;
  // The writer may start only after 300 reads, so the loop continues until the writer has run.
  const auto has_begun = [&] { return seen > 0 && !recorder->Read().gave_up.empty(); };
  for (int reads = 0; reads < 300 || !has_begun(); ++reads) {
    const FlightRecord record = recorder->Read();
    for (size_t i = 0; i < record.operations.size(); ++i) {
      ++seen;
      torn += !IsWhole(record.operations[i]);
      unordered += i > 0 && record.operations[i].sequence <= record.operations[i - 1].sequence;
    }
  }
  stop = true;
  writer.join();
  CHECK(seen > 0);
  CHECK(torn == 0);
  CHECK(unordered == 0);
}

TEST_CASE("the record of a process that was killed can be read") {
  const testing::TemporaryFolder folder;
  const std::string path = base::FlightFile(folder.path(), 2);
  const pid_t child = fork();
  if (child == 0) {
    const auto recorder = FlightRecorder::InFile(path, 2, "h");
    recorder->Start("world", 5, AllReduceOf(4), At(1));
    kill(getpid(), SIGKILL);
  }
  int status = 0;
  waitpid(child, &status, 0);
  REQUIRE(WIFSIGNALED(status));
  const auto record = base::ReadFlightFile(path);
  REQUIRE(record);
  CHECK(record->pid == child);
  CHECK(
      base::PastActivity(*record) == "waited in collective #5, all_reduce (f32, 4 elements, sum)");
}

TEST_CASE("the progress of a rank can be read without its operations") {
  const testing::TemporaryFolder folder;
  const std::string path = base::FlightFile(folder.path(), 2);
  const auto recorder = FlightRecorder::InFile(path, 2, "h");
  CHECK(base::ReadFlightProgress(path) == base::FlightProgress{.rank = 2});
  const base::StepTotals step = {
      .steps = 1, .total_ns = 10, .exposed_ns = 5, .late_ns = 2, .bytes = 100, .buckets = 3};
  recorder->AddSteps(step);
  recorder->AddSteps(step);
  base::StepTotals twice = step;
  twice += step;
  recorder->AddWaiting(std::chrono::milliseconds(3));
  recorder->AddWaiting(std::chrono::milliseconds(4));
  CHECK(
      base::ReadFlightProgress(path) ==
      base::FlightProgress{.rank = 2, .step = 2, .waited_ns = 7'000'000, .reduced = twice});
  // Progress that the program reports replaces the counted steps.
  recorder->ReportProgress(1, 32);
  CHECK(
      base::ReadFlightProgress(path) ==
      base::FlightProgress{
          .rank = 2, .step = 1, .examples = 32, .waited_ns = 7'000'000, .reduced = twice});
  CHECK_FALSE(base::ReadFlightProgress(folder.path()));
  CHECK_FALSE(base::ReadFlightProgress(folder.Write("short", "dtrun")));
  CHECK_FALSE(base::ReadFlightProgress(folder.Write("zeros", std::string(40'000, '\0'))));
}

TEST_CASE("a record file must not exist before and only its owner can read it") {
  const testing::TemporaryFolder folder;
  const std::string path = folder.path() + "/0";
  const auto recorder = FlightRecorder::InFile(path, 0, "h");
  struct stat status = {};
  REQUIRE(stat(path.c_str(), &status) == 0);
  CHECK((status.st_mode & 0777) == 0600);
  CHECK_THROWS_AS(FlightRecorder::InFile(path, 0, "h"), Error);

  const std::string victim = folder.Write("victim", "untouched");
  std::filesystem::create_symlink(victim, folder.path() + "/1");
  CHECK_THROWS_AS(FlightRecorder::InFile(folder.path() + "/1", 1, "h"), Error);
  std::filesystem::create_symlink(folder.path() + "/absent", folder.path() + "/2");
  CHECK_THROWS_AS(FlightRecorder::InFile(folder.path() + "/2", 2, "h"), Error);
  CHECK_FALSE(std::filesystem::exists(folder.path() + "/absent"));
  CHECK(std::filesystem::file_size(victim) == 9);
  CHECK_THROWS_AS(FlightRecorder::InFile("/nonexistent/0", 0, "h"), Error);
}

TEST_CASE("a file that is not a complete record is rejected") {
  const testing::TemporaryFolder folder;
  const std::string path = folder.path() + "/0";
  FlightRecorder::InFile(path, 0, "h")->Start("world", 1, AllReduceOf(1), At(1));
  REQUIRE(base::ReadFlightFile(path));
  const std::string good = ReadText(path);

  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{100}, size_t{2048}, good.size() - 1}) {
    CHECK_FALSE(base::ReadFlightFile(folder.Write("cut", good.substr(0, bytes))));
  }
  // The bytes change the magic, the version, the number of entries (too many, or not a power of
  // two) and the entry size.
  for (const size_t byte : {0, 8, 12, 13, 15, 16}) {
    std::string bad = good;
    bad[byte] = static_cast<char>(bad[byte] ^ 0x7f);
    CHECK_FALSE(base::ReadFlightFile(folder.Write("bad", bad)));
  }
  CHECK_FALSE(base::ReadFlightFile(folder.path()));
  CHECK_FALSE(base::ReadFlightFile(folder.path() + "/absent"));
  std::filesystem::create_symlink(path, folder.path() + "/link");
  CHECK_FALSE(base::ReadFlightFile(folder.path() + "/link"));
  REQUIRE(mkfifo((folder.path() + "/fifo").c_str(), 0600) == 0);
  CHECK_FALSE(base::ReadFlightFile(folder.path() + "/fifo"));
}

TEST_CASE("garbage in a record is described without a crash or control characters") {
  const testing::TemporaryFolder folder;
  const std::string path = folder.path() + "/0";
  FlightRecorder::InFile(path, 0, "h")->Start("world", 1, AllReduceOf(1), At(1));
  std::string bytes = ReadText(path);
  for (size_t i = 28; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 31 % 251);
  const auto record = base::ReadFlightFile(folder.Write("garbage", bytes));
  REQUIRE(record);
  for (const FlightOperation& operation : record->operations) {
    CHECK(operation.state <= FlightState::kFailed);
    CHECK_FALSE(base::Describe(operation.call).empty());
  }
  for (const char c : record->host + record->gave_up) {
    CHECK(static_cast<unsigned char>(c) >= ' ');
  }
  CHECK_FALSE(base::PastActivity(*record).empty());
}

TEST_CASE("a rank is described by the operation in flight or else by its last operation") {
  const auto recorder = FlightRecorder::InMemory(0, "h");
  const auto now = At(60'000'000'000);
  CHECK(base::PresentActivity(recorder->Read(), now) == "called nothing yet");
  CHECK(base::PastActivity(recorder->Read()) == "called nothing");
  base::Call barrier = AllReduceOf(0);
  barrier.kind = static_cast<uint8_t>(base::CollectiveKind::kBarrier);
  recorder->End(
      recorder->Start("world", 11, barrier, At(1)), FlightState::kDone, At(29'000'000'000));
  CHECK(
      base::PresentActivity(recorder->Read(), now) ==
      "last finished collective #11, barrier, 31 s ago");
  CHECK(base::PastActivity(recorder->Read()) == "last finished collective #11, barrier");

  const uint64_t stuck = recorder->Start("world/2", 1, AllReduceOf(4), At(15'000'000'000));
  recorder->End(recorder->Start("world", 12, barrier, At(1)), FlightState::kDone, now);
  CHECK(
      base::PresentActivity(recorder->Read(), now) ==
      "is in collective #1 of world/2, all_reduce (f32, 4 elements, sum), since 45 s");
  recorder->Move(stuck);
  CHECK(
      base::PastActivity(recorder->Read()) ==
      "moved data in collective #1 of world/2, all_reduce (f32, 4 elements, sum)");
  recorder->End(stuck, FlightState::kDone, now);
  recorder->End(recorder->Start("world", 13, barrier, now), FlightState::kFailed, now);
  CHECK(
      base::PresentActivity(recorder->Read(), now) == "failed in collective #13, barrier, 0 s ago");
}

}  // namespace
