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

TEST_CASE("after Shutdown an exit code of a rank needs no message from dtrun") {
  const ExitRecord left = {1, RankEnd::kExited, 66, 5, true};
  const Verdict verdict =
      JudgeByMpirun({left, {0, RankEnd::kRunning, 0, 0, false}}, 66, {{"h", 2}});
  CHECK(verdict.exit_code == 66);
  CHECK(verdict.message.empty());
}

TEST_CASE("the rank that failed first is the culprit even if mpirun reports another rank") {
  const Verdict verdict = Judge(
      {{0, RankEnd::kExited, 76, 20}, {1, RankEnd::kExited, 3, 10}, {2, RankEnd::kExited, 0, 5}},
      76);
  CHECK(verdict.exit_code == 3);
  CHECK(verdict.message == "rank 1 on h2 exited with code 3");
}

TEST_CASE("a death by signal is reported by name and as exit code 128 + signal") {
  const Verdict verdict = Judge({{0, RankEnd::kSignaled, SIGSEGV, 1}}, 139);
  CHECK(verdict.exit_code == 139);
  CHECK(verdict.message == "rank 0 on h1 was killed by SIGSEGV");
}

TEST_CASE("a rank that mpirun ended with SIGTERM is not the culprit") {
  const Verdict verdict = Judge(
      {{0, RankEnd::kSignaled, SIGTERM, 5},
       {1, RankEnd::kExited, 3, 10},
       {2, RankEnd::kRunning, 0, 0}},
      3);
  CHECK(verdict.message == "rank 1 on h2 exited with code 3");
}

TEST_CASE("a rank killed by SIGTERM is the culprit if mpirun's exit code says the same") {
  const Verdict verdict =
      Judge({{2, RankEnd::kSignaled, SIGTERM, 5}, {1, RankEnd::kExited, 76, 10}}, 143);
  CHECK(verdict.exit_code == 143);
  CHECK(verdict.message == "rank 2 on h2 was killed by SIGTERM");
}

TEST_CASE("a rank that exited with code 0 while others needed it is named") {
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

TEST_CASE("a rank that gave up waiting gives the reason and its own exit code is kept") {
  const auto [end, value, code] = GENERATE(
      std::tuple(RankEnd::kExited, 0, 76), std::tuple(RankEnd::kExited, 76, 76),
      std::tuple(RankEnd::kExited, 9, 9), std::tuple(RankEnd::kSignaled, SIGABRT, 76),
      std::tuple(RankEnd::kSignaled, SIGSEGV, 139));
  const Verdict verdict =
      Judge({Stalled(0, end, value, 5), {1, RankEnd::kSignaled, SIGTERM, 6}}, 1);
  CHECK(verdict.exit_code == code);
  CHECK(verdict.message == std::string("rank 0 on h1: ") + kGaveUp);
}

TEST_CASE("a rank that failed before other ranks gave up is the culprit") {
  const Verdict verdict =
      Judge({Stalled(0, RankEnd::kExited, 76, 9), {1, RankEnd::kExited, 3, 5}}, 3);
  CHECK(verdict.exit_code == 3);
  CHECK(verdict.message == "rank 1 on h2 exited with code 3");
}

TEST_CASE("a rank that gave up waiting gives the reason even if the engine then ends the rank") {
  const Records records = {Stalled(0, RankEnd::kSignaled, SIGTERM, 5)};
  const auto [engine_code, code] = GENERATE(std::pair(76, 76), std::pair(1, 76), std::pair(7, 7));
  const Verdict verdict = JudgeByMpirun(records, engine_code, kHosts);
  CHECK(verdict.exit_code == code);
  CHECK(verdict.message == std::string("rank 0 on h1: ") + kGaveUp);
}

TEST_CASE("MPI_Abort is blamed on the rank that called it or on no rank if that is unknown") {
  const Records all = {
      {0, RankEnd::kSignaled, SIGTERM, 5},
      {1, RankEnd::kSignaled, SIGTERM, 5},
      {2, RankEnd::kSignaled, SIGTERM, 5}};
  const std::string events =
      "[h1:1] [[4695,0],0] ACTIVATE PROC [[4695,1],1] STATE RUNNING AT odls_base.c:1056\n"
      "[h1:1] [[4695,0],0] ACTIVATE PROC [[4695,1],1] STATE CALLED ABORT AT pmix_server.c:198\n";
  const LaunchEngine& mpirun = *FindLaunchEngine("mpirun");
  const Verdict abort = JudgeFailure(all, 7, kHosts, mpirun.Explain(7, kHosts, events));
  CHECK(abort.exit_code == 7);
  CHECK(abort.message == "rank 1 on h2 called MPI_Abort with code 7");
  CHECK(abort.culprit == 1);
  CHECK(Judge(all, 7).exit_code == 70);
  const Verdict signal = Judge(all, 1);
  CHECK(signal.exit_code == 70);
  CHECK(signal.message == "mpirun was told to end by a signal from outside; its ranks were ended");
  CHECK(signal.culprit == -1);
}

TEST_CASE("a rank killed by a signal is the culprit even if a survivor ended first") {
  const ExitRecord survivor = {0, RankEnd::kSignaled, SIGABRT, 1'000'000'000};
  const auto verdict = [&](int signal, int64_t time_ns, bool alone = true) {
    ExitRecord killed = {1, RankEnd::kSignaled, signal, time_ns};
    killed.alone = alone;
    return Judge({survivor, killed}, 134).message;
  };
  CHECK(verdict(SIGKILL, 2'500'000'000) == "rank 1 on h2 was killed by SIGKILL");
  CHECK(verdict(SIGSEGV, 1'050'000'000) == "rank 1 on h2 was killed by SIGSEGV");
  CHECK(verdict(SIGTERM, 1'100'000'000) == "rank 1 on h2 was killed by SIGTERM");
  SECTION("not if the signal came from the engine or too late") {
    CHECK(verdict(SIGTERM, 1'001'000'000, false) == "rank 0 on h1 was killed by SIGABRT");
    CHECK(verdict(SIGSEGV, 1'500'000'000) == "rank 0 on h1 was killed by SIGABRT");
    CHECK(verdict(SIGKILL, 4'000'000'000) == "rank 0 on h1 was killed by SIGABRT");
  }
}

TEST_CASE("a rank is the culprit if its wrapper was killed alone before other ranks failed") {
  const ExitRecord gone = {1, RankEnd::kRunning, 0, 1'000'000'000};
  const ExitRecord survivor = {0, RankEnd::kExited, 1, 1'100'000'000};
  const ExitRecord other = {2, RankEnd::kSignaled, SIGTERM, 1'200'000'000};
  CHECK(
      Judge({gone, survivor, other}, 1).message ==
      "rank 1 on h2 was killed together with its wrapper");
  CHECK(
      Judge({gone, survivor}, 137).message == "rank 1 on h2 was killed together with its wrapper");
  CHECK(Judge({gone, survivor}, 1).message == "rank 0 on h1 exited with code 1");
}

TEST_CASE("a killed ssh of mpirun is reported as a lost connection") {
  const Records gone = {
      {0, RankEnd::kRunning, 0, 9}, {1, RankEnd::kRunning, 0, 8}, {2, RankEnd::kRunning, 0, 9}};
  const std::string events =
      "[h1:1] [[4695,0],0] ACTIVATE PROC [[4695,0],1] STATE FAILED TO START AT plm_rsh.c:1\n";
  const EngineEnd end = FindLaunchEngine("mpirun")->Explain(9, kHosts, events);
  CHECK(end.daemon == 1);
  const Verdict verdict = JudgeFailure(gone, 9, kHosts, end, HostOfDaemon(1, {true, false}));
  CHECK(verdict.exit_code == 69);
  CHECK(verdict.message == "the connection to h2 was lost; the ranks were ended");
}

TEST_CASE("a daemon that mpirun has told to end does not count as lost") {
  const std::string told = GENERATE(
      as<std::string>(), "JOB NULL STATE DAEMONS TERMINATED AT orted_comm.c:382\n",
      "PROC [[4695,1],1] STATE ABORTED BY SIGNAL AT plm_base_receive.c:352\n",
      "PROC [[4695,1],1] STATE CALLED ABORT AT pmix_server_gen.c:198\n");
  const std::string start = "[h1:1] [[4695,0],0] ACTIVATE ";
  const std::string lost = "PROC [[4695,0],1] STATE COMMUNICATION FAILURE AT oob.c:1086\n";
  const LaunchEngine& mpirun = *FindLaunchEngine("mpirun");
  CHECK(mpirun.Explain(137, kHosts, start + told + start + lost).daemon == 0);
  CHECK(mpirun.Explain(137, kHosts, start + lost + start + told).daemon == 1);
}

TEST_CASE("Open MPI 5 loses a daemon with code 0, but not one that ends after the job") {
  const std::string start = "[h1:1] [prterun-h1-1@0,0] [1795910013.83] ACTIVATE ";
  const std::string lost =
      start + "PROC [prterun-h1-1@0,1] STATE COMMUNICATION FAILURE AT oob_tcp.c:949\n";
  const std::string ended = start + "JOB prterun-h1-1@1 STATE NOTIFY COMPLETED AT dvm.c:671\n";
  const std::string abort = start + "PROC [prterun-h1-1@1,1] STATE CALLED ABORT AT plm.c:515\n";
  const testing::TemporaryFolder folder;
  folder.Write("mpirun", "#!/bin/sh\necho 'mpirun (Open MPI) 5.0.8'\n", 0755);
  const LaunchEngine& mpirun = FindLaunchEngine("mpirun")->VersionIn(folder.path());
  CHECK(mpirun.Explain(0, kHosts, lost + ended).daemon == 1);
  CHECK(mpirun.Explain(0, kHosts, lost + ended).lost_daemon == "Open MPI's daemon");
  CHECK(mpirun.Explain(0, kHosts, ended + lost).daemon == 0);
  CHECK(mpirun.Explain(7, kHosts, abort + lost).unexplained.culprit == 1);
}

TEST_CASE("if a signal ended mpirun then no daemon and no rank is blamed") {
  const std::string events =
      "[h1:1] [[4695,0],0] ACTIVATE PROC [[4695,0],1] STATE COMMUNICATION FAILURE AT oob.c:1086\n";
  const Records ended = {{0, RankEnd::kExited, 0, 9}, {1, RankEnd::kRunning, 0, 8}};
  const EngineEnd end = FindLaunchEngine("mpirun")->Explain(1, kHosts, events);
  const Verdict verdict =
      JudgeFailure(ended, 1, kHosts, end, HostOfDaemon(end.daemon, {true, false}));
  CHECK(verdict.exit_code == 70);
  CHECK_THAT(verdict.message, Contains("told to end by a signal from outside"));
}

TEST_CASE("a daemon that is lost after its ranks have ended is still named") {
  const Records ended = {{0, RankEnd::kExited, 0, 9}, {1, RankEnd::kExited, 0, 8}};
  const EngineEnd end = FindLaunchEngine("mpirun")->Explain(205, kHosts, "");
  CHECK_THAT(JudgeFailure(ended, 205, kHosts, end, 1).message, Contains("daemon on h2 was lost"));
}

TEST_CASE("the message names the host of the daemon that mpirun lost first") {
  const Records gone = {
      {0, RankEnd::kRunning, 0, 9}, {1, RankEnd::kRunning, 0, 8}, {2, RankEnd::kRunning, 0, 9}};
  const std::string events =
      "[h0:1] [[4695,0],0] ACTIVATE PROC [[4695,0],1] STATE COMMUNICATION FAILURE AT oob.c:1086\n"
      "[h0:1] [[4695,0],0] ACTIVATE PROC [[4695,0],2] STATE COMMUNICATION FAILURE AT oob.c:1086\n";
  const EngineEnd end = FindLaunchEngine("mpirun")->Explain(205, kHosts, events);
  CHECK(end.daemon == 1);
  CHECK(HostOfDaemon(1, {false, false}) == 0);
  CHECK(HostOfDaemon(1, {true, false}) == 1);
  CHECK(HostOfDaemon(0, {true, false}) == -1);
  CHECK(HostOfDaemon(2, {true, false}) == -1);
  CHECK_THAT(JudgeFailure(gone, 205, kHosts, end, 0).message, Contains("daemon on h1 was lost"));
  CHECK_THAT(JudgeFailure(gone, 205, kHosts, end).message, Contains("daemon on h2 was lost"));
}

TEST_CASE("a job without a record of any rank did not start") {
  CHECK(Judge({}, 1).exit_code == 69);
  CHECK(Judge({}, 255).exit_code == 69);
}

TEST_CASE("a rank killed together with its wrapper is named if mpirun reports a kill") {
  const Verdict verdict =
      Judge({{0, RankEnd::kSignaled, SIGTERM, 5}, {2, RankEnd::kRunning, 0, 4}}, 137);
  CHECK(verdict.exit_code == 137);
  CHECK(verdict.message == "rank 2 on h2 was killed together with its wrapper");
  CHECK(verdict.culprit == 2);
}

TEST_CASE(
    "a lost daemon is found by the ranks that it leaves orphaned and not by the first rank that "
    "ended") {
  const Verdict verdict = Judge(
      {{.rank = 0, .end = RankEnd::kRunning, .time_ns = 10},
       {.rank = 1, .end = RankEnd::kRunning, .time_ns = 20, .orphaned = true}},
      205);
  CHECK(verdict.exit_code == 70);
  CHECK(verdict.message == "Open MPI's daemon on h2 was lost; its ranks were ended");
}

TEST_CASE("if the kernel refuses the program then dtrun uses the exit codes of a shell") {
  CHECK(Judge({{0, RankEnd::kNotStarted, ENOENT, 1}}, 127).exit_code == 127);
  CHECK(Judge({{0, RankEnd::kNotStarted, EACCES, 1}}, 126).exit_code == 126);
}

}  // namespace
}  // namespace dtrun::launcher
