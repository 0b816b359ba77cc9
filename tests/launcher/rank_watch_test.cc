#include "launcher/job/rank_watch.h"

#include <signal.h>

#include <catch2/catch.hpp>
#include <string>
#include <vector>

namespace dtrun::launcher {
namespace {

using Records = std::vector<ExitRecord>;

constexpr int64_t kSecondNs = 1'000'000'000;

// A joined rank. Its program warns after 10 s and gives up after 60 s.
ExitRecord Joined(int rank) {
  ExitRecord record = {.rank = rank, .pid = 100 + rank, .start_ns = 1};
  record.state = {.joined = true, .timeout_s = 60, .warning_s = 10};
  return record;
}

ExitRecord InInit(int rank, int64_t since_ns) {
  ExitRecord record = Joined(rank);
  record.state.joined = false;
  record.state.init_ns = since_ns;
  return record;
}

ExitRecord BeforeInit(int rank) {
  ExitRecord record = Joined(rank);
  record.state = {};
  return record;
}

ExitRecord Halted(int rank, int64_t since_ns) {
  ExitRecord record = Joined(rank);
  record.state.stopped_ns = since_ns;
  return record;
}

ExitRecord Left(int rank, int code, int64_t at_ns) {
  ExitRecord record = Joined(rank);
  record.end = RankEnd::kExited;
  record.value = code;
  record.time_ns = at_ns;
  return record;
}

RankWatch TwoHosts() { return RankWatch({{"h1", 2}, {"h2", 1}}); }

std::string Message(const Records& records, int64_t now_ns) {
  const auto verdict = TwoHosts().Judge(records, now_ns);
  return verdict ? verdict->message : "";
}

TEST_CASE("a rank that does not call Init is named once the others have waited too long") {
  const Records records = {InInit(0, 5 * kSecondNs), InInit(1, 6 * kSecondNs), BeforeInit(2)};
  CHECK(Message(records, 64 * kSecondNs).empty());
  CHECK(
      Message(records, 66 * kSecondNs) ==
      "rank 2 on h2 has not called Init (pid 102); ranks 0 and 1 have been waiting in Init for "
      "60 to 61 s (--stall-timeout)");
  CHECK(TwoHosts().Judge(records, 66 * kSecondNs)->culprit == 2);
  CHECK(TwoHosts().Judge(records, 66 * kSecondNs)->exit_code == 76);
}

TEST_CASE("a rank that has not started is named too") {
  CHECK(
      Message({InInit(0, kSecondNs), InInit(1, kSecondNs)}, 62 * kSecondNs) ==
      "rank 2 on h2 has not started; ranks 0 and 1 have been waiting in Init for 61 s "
      "(--stall-timeout)");
}

TEST_CASE("ranks in Init wait two seconds for an ended rank and joined ranks do not wait") {
  const Records records = {
      InInit(0, kSecondNs), Left(1, 0, 3 * kSecondNs), InInit(2, 2 * kSecondNs)};
  CHECK(Message(records, 4 * kSecondNs).empty());
  CHECK(
      Message(records, 6 * kSecondNs) ==
      "rank 1 on h1 exited with code 0 while ranks 0 and 2 wait for it in Init");
  CHECK(Message({Joined(0), Left(1, 0, kSecondNs), Joined(2)}, 600 * kSecondNs).empty());
  // If a rank has failed, the engine ends the job.
  CHECK(
      Message({InInit(0, kSecondNs), Left(1, 3, kSecondNs), InInit(2, 1)}, 6 * kSecondNs).empty());
}

TEST_CASE("dtrun gives up on a stopped rank a little later than the other ranks do") {
  const Records records = {Joined(0), Halted(1, 10 * kSecondNs), Joined(2)};
  RankWatch watch = TwoHosts();
  CHECK(watch.Warnings(records, 19 * kSecondNs).empty());
  CHECK(
      watch.Warnings(records, 21 * kSecondNs) ==
      std::vector<std::string>{
          "warning: rank 1 on h1 has been stopped by a signal for 11 s (pid 101)"});
  CHECK(watch.Warnings(records, 22 * kSecondNs).empty());
  CHECK(!watch.Judge(records, 71 * kSecondNs));
  CHECK(watch.Judge(records, 73 * kSecondNs)->culprit == 1);
  // No limit applies to a program that never called Init.
  ExitRecord foreign = Halted(1, 10 * kSecondNs);
  foreign.state.timeout_s = 0;
  CHECK(!watch.Judge({Joined(0), foreign, Joined(2)}, 7'300 * kSecondNs));
}

TEST_CASE("the time while dtrun was stopped does not count") {
  const Records records = {Joined(0), Halted(1, 10 * kSecondNs), Joined(2)};
  RankWatch watch = TwoHosts();
  watch.Restart(100 * kSecondNs);
  CHECK(!watch.Judge(records, 150 * kSecondNs));
  CHECK(watch.Judge(records, 163 * kSecondNs).has_value());
}

TEST_CASE("an engine has ten seconds to react after ranks have ended") {
  const RankWatch watch = TwoHosts();
  const Records done = {Left(0, 0, kSecondNs), Left(1, 0, kSecondNs), Left(2, 0, 2 * kSecondNs)};
  CHECK(!watch.EngineHangs(done, 11 * kSecondNs));
  CHECK(watch.EngineHangs(done, 13 * kSecondNs));
  const Records failed = {Joined(0), Left(1, 3, kSecondNs), Joined(2)};
  CHECK(!watch.EngineHangs(failed, 10 * kSecondNs));
  CHECK(watch.EngineHangs(failed, 12 * kSecondNs));
  CHECK(!watch.EngineHangs({Joined(0), Left(1, 0, kSecondNs), Joined(2)}, 600 * kSecondNs));
}

}  // namespace
}  // namespace dtrun::launcher
