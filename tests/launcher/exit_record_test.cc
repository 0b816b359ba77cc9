#include "launcher/protocol/exit_record.h"

#include <signal.h>

#include <catch2/catch.hpp>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "launcher/engines/launch_engine.h"
#include "tests/support/subprocess.h"

namespace dtrun::launcher {
namespace {

using Catch::Matchers::Contains;
using Records = std::vector<ExitRecord>;

const std::vector<base::HostSlots> kHosts = {{"h1", 1}, {"h2", 2}};

Verdict JudgeByMpirun(
    const Records& records, int engine_code, const std::vector<base::HostSlots>& hosts) {
  return JudgeFailure(
      records, engine_code, hosts, FindLaunchEngine("mpirun")->Explain(engine_code, hosts));
}

Verdict Judge(const Records& records, int engine_code) {
  return JudgeByMpirun(records, engine_code, kHosts);
}

TEST_CASE("a rank that left in good order has said itself why its code is not 0") {
  const ExitRecord left = {1, RankEnd::kExited, 66, 5, true};
  const Verdict verdict =
      JudgeByMpirun({left, {0, RankEnd::kRunning, 0, 0, false}}, 66, {{"h", 2}});
  CHECK(verdict.exit_code == 66);
  CHECK(verdict.message.empty());
}

TEST_CASE("the rank that failed first is to blame, whatever mpirun saw first") {
  const Verdict verdict = Judge(
      {{0, RankEnd::kExited, 76, 20}, {1, RankEnd::kExited, 3, 10}, {2, RankEnd::kExited, 0, 5}},
      76);
  CHECK(verdict.exit_code == 3);
  CHECK(verdict.message == "rank 1 on h2 exited with code 3");
}

TEST_CASE("a signal is named and counts from 128") {
  const Verdict verdict = Judge({{0, RankEnd::kSignaled, SIGSEGV, 1}}, 139);
  CHECK(verdict.exit_code == 139);
  CHECK(verdict.message == "rank 0 on h1 was killed by SIGSEGV");
}

TEST_CASE("ranks that mpirun ended are victims") {
  const Verdict verdict = Judge(
      {{0, RankEnd::kSignaled, SIGTERM, 5},
       {1, RankEnd::kExited, 3, 10},
       {2, RankEnd::kRunning, 0, 0}},
      3);
  CHECK(verdict.message == "rank 1 on h2 exited with code 3");
}

TEST_CASE("a rank that somebody ended by SIGTERM is no victim when mpirun says so too") {
  const Verdict verdict =
      Judge({{2, RankEnd::kSignaled, SIGTERM, 5}, {1, RankEnd::kExited, 76, 10}}, 143);
  CHECK(verdict.exit_code == 143);
  CHECK(verdict.message == "rank 2 on h2 was killed by SIGTERM");
}

TEST_CASE("a rank that left while the others needed it is named") {
  const Verdict verdict = Judge(
      {{0, RankEnd::kSignaled, SIGTERM, 5},
       {1, RankEnd::kExited, 0, 1},
       {2, RankEnd::kSignaled, SIGTERM, 5}},
      1);
  CHECK(verdict.exit_code == 76);
  CHECK_THAT(verdict.message, Contains("rank 1 on h2") && Contains("MPI_Finalize"));
}

constexpr char kGaveUp[] = "gave up after 600 s: collective #12, barrier, waits for rank 1";

ExitRecord Stalled(int rank, RankEnd end, int value, int64_t time_ns) {
  return {rank, end, value, time_ns, false, 0, kGaveUp};
}

TEST_CASE("a rank that gave up waiting says why, and an exit code of its own counts") {
  const auto [end, value, code] = GENERATE(
      std::tuple(RankEnd::kExited, 0, 76), std::tuple(RankEnd::kExited, 76, 76),
      std::tuple(RankEnd::kExited, 9, 9), std::tuple(RankEnd::kSignaled, SIGABRT, 76),
      std::tuple(RankEnd::kSignaled, SIGSEGV, 139));
  const Verdict verdict =
      Judge({Stalled(0, end, value, 5), {1, RankEnd::kSignaled, SIGTERM, 6}}, 1);
  CHECK(verdict.exit_code == code);
  CHECK(verdict.message == std::string("rank 0 on h1: ") + kGaveUp);
}

TEST_CASE("a rank that failed before others gave up is to blame") {
  const Verdict verdict =
      Judge({Stalled(0, RankEnd::kExited, 76, 9), {1, RankEnd::kExited, 3, 5}}, 3);
  CHECK(verdict.exit_code == 3);
  CHECK(verdict.message == "rank 1 on h2 exited with code 3");
}

TEST_CASE("a job that a stalled rank aborted, or one elsewhere left, is told by who gave up") {
  const Records records = {Stalled(0, RankEnd::kSignaled, SIGTERM, 5)};
  const auto [engine_code, code] = GENERATE(std::pair(76, 76), std::pair(1, 76), std::pair(7, 7));
  const Verdict verdict = JudgeByMpirun(records, engine_code, kHosts);
  CHECK(verdict.exit_code == code);
  CHECK(verdict.message == std::string("rank 0 on h1: ") + kGaveUp);
}

TEST_CASE("an abort has no culprit but keeps its code") {
  const Records all = {
      {0, RankEnd::kSignaled, SIGTERM, 5},
      {1, RankEnd::kSignaled, SIGTERM, 5},
      {2, RankEnd::kSignaled, SIGTERM, 5}};
  CHECK(Judge(all, 7).exit_code == 7);
  CHECK_THAT(Judge(all, 7).message, Contains("MPI_Abort"));
}

TEST_CASE("a job of which no rank was seen did not start") {
  CHECK(Judge({}, 1).exit_code == 69);
  CHECK(Judge({}, 255).exit_code == 69);
}

TEST_CASE("a rank that died with its wrapper is named when mpirun saw a kill") {
  const Verdict verdict =
      Judge({{0, RankEnd::kSignaled, SIGTERM, 5}, {2, RankEnd::kRunning, 0, 4}}, 137);
  CHECK(verdict.exit_code == 137);
  CHECK(verdict.message == "rank 2 on h2 was killed together with its wrapper");
  CHECK(verdict.culprit == 2);
}

TEST_CASE(
    "the daemon that is gone is the one whose ranks were left, whoever's end is heard first") {
  const Verdict verdict = Judge(
      {{.rank = 0, .end = RankEnd::kRunning, .time_ns = 10},
       {.rank = 1, .end = RankEnd::kRunning, .time_ns = 20, .orphaned = true}},
      205);
  CHECK(verdict.exit_code == 70);
  CHECK(verdict.message == "Open MPI's daemon on h2 was lost; its ranks were ended");
}

TEST_CASE("a program that the kernel refuses gives the codes of a shell") {
  CHECK(Judge({{0, RankEnd::kNotStarted, ENOENT, 1}}, 127).exit_code == 127);
  CHECK(Judge({{0, RankEnd::kNotStarted, EACCES, 1}}, 126).exit_code == 126);
}

}  // namespace
}  // namespace dtrun::launcher
