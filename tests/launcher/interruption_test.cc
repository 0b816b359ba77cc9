#include <signal.h>

#include <catch2/catch.hpp>

#include "launcher/job/rank_watch.h"
#include "launcher/job/supervisor.h"
#include "launcher/rank/rank_wrapper.h"
#include "launcher/support/host_system.h"
#include "launcher/support/launch_error.h"

namespace dtrun::launcher {
namespace {

using namespace std::chrono_literals;
using Step = Interruption::Step;

constexpr Interruption::Time kStart{};
constexpr NoticeAnswers kNoAnswer{.awaited = 2}, kNobody{}, kSome{.awaited = 1, .takers = 1};

TEST_CASE("if no rank takes notices then the job is ended as soon as all ranks have answered") {
  Interruption job(10s);
  CHECK(job.OnTime(kNobody, kStart) == Step::kNone);
  CHECK(job.OnSignal(SIGTERM, kStart) == Step::kNotice);
  CHECK(job.signal() == SIGTERM);
  CHECK(job.OnTime(kNoAnswer, kStart + 999ms) == Step::kNone);
  CHECK(job.OnTime(kNobody, kStart + 999ms) == Step::kTerminate);
  CHECK(job.OnTime(kNobody, kStart + 10998ms) == Step::kNone);
  CHECK(job.OnTime(kNobody, kStart + 10999ms) == Step::kKill);
}

TEST_CASE("a program that has just started gets time to take the notice, except after Ctrl-C") {
  constexpr NoticeAnswers kStarting{.starting = 1};
  Interruption job(10s), typed(10s);
  job.OnSignal(SIGTERM, kStart);
  CHECK(job.OnTime(kStarting, kStart + 2s) == Step::kNone);
  CHECK(job.OnTime(kStarting, kStart + 3s) == Step::kTerminate);
  typed.OnSignal(SIGINT, kStart);
  CHECK(typed.OnTime(kStarting, kStart + 1ms) == Step::kTerminate);
}

TEST_CASE("ranks that do not answer a notice are waited for only one second") {
  Interruption job(10s);
  job.OnSignal(SIGINT, kStart);
  CHECK(job.OnTime(kNoAnswer, kStart + 1s) == Step::kTerminate);
}

TEST_CASE("the grace time runs if at least one rank takes notices") {
  Interruption job(10s);
  job.OnSignal(SIGTERM, kStart);
  CHECK(job.OnTime(kSome, kStart + 1ms) == Step::kNone);
  CHECK(job.in_grace());
  CHECK(job.OnTime(kSome, kStart + 9999ms) == Step::kNone);
  CHECK(job.OnTime(kSome, kStart + 10s) == Step::kTerminate);
  CHECK_FALSE(job.in_grace());
  CHECK(job.OnTime(kSome, kStart + 20s) == Step::kKill);
}

TEST_CASE("hosts that are told to end and then dtrun itself count as one signal") {
  Interruption job(10s);
  CHECK(job.OnHostTold(kStart) == Step::kNotice);
  CHECK(job.signal() == SIGTERM);
  CHECK(job.OnTime(kSome, kStart + 1ms) == Step::kNone);
  CHECK(job.OnHostTold(kStart + 1s) == Step::kNone);
  CHECK(job.OnSignal(SIGTERM, kStart + 2s) == Step::kNone);
  CHECK(job.OnSignal(SIGTERM, kStart + 3s) == Step::kKill);

  Interruption other(10s);
  CHECK(other.OnSignal(SIGTERM, kStart) == Step::kNotice);
  CHECK(other.OnHostTold(kStart + 1s) == Step::kNone);
  CHECK(other.OnSignal(SIGTERM, kStart + 2s) == Step::kKill);
}

TEST_CASE("a second signal kills the job unless it repeats the first within 200 ms") {
  Interruption job(10s);
  job.OnSignal(SIGTERM, kStart);
  const bool in_grace = GENERATE(false, true);
  job.OnTime(in_grace ? kSome : kNobody, kStart);
  CHECK(job.OnSignal(SIGTERM, kStart + 100ms) == Step::kNone);
  CHECK(job.OnSignal(SIGTERM, kStart + 201ms) == Step::kKill);
  CHECK(job.OnSignal(SIGINT, kStart) == Step::kKill);
  CHECK(job.signal() == SIGTERM);
}

TEST_CASE("SIGUSR1 gives notice each time and does not end the job") {
  Interruption job(10s);
  CHECK(job.OnSignal(SIGUSR1, kStart) == Step::kNotice);
  CHECK(job.OnSignal(SIGUSR1, kStart + 1s) == Step::kNotice);
  CHECK(job.OnTime(kSome, kStart + 1000s) == Step::kNone);
  CHECK(job.signal() == 0);
  CHECK(job.OnSignal(SIGTERM, kStart + 1000s) == Step::kNotice);
  CHECK(job.OnSignal(SIGUSR1, kStart + 1000s) == Step::kNone);
}

TEST_CASE("SIGPIPE and OnEnd and a grace time of 0 end the job without a notice") {
  Interruption none(0s), broken(10s), ended(10s);
  CHECK(none.OnSignal(SIGTERM, kStart) == Step::kTerminate);
  CHECK(broken.OnSignal(SIGPIPE, kStart) == Step::kTerminate);
  CHECK(ended.OnEnd(kStart) == Step::kTerminate);
  CHECK(ended.OnEnd(kStart) == Step::kNone);
  CHECK(ended.OnTime(kSome, kStart + 10s) == Step::kKill);
}

TEST_CASE("the status of a process shows whether the process takes notices") {
  CHECK(TakesNotices("Name:\tx\nSigBlk:\t0000000000000000\nSigCgt:\t0000000000000200\n"));
  CHECK(TakesNotices("Name:\tx\nSigBlk:\t0000000000000200\nSigCgt:\t0000000000000000\n"));
  CHECK_FALSE(TakesNotices("Name:\tx\nSigBlk:\t0000000000000100\nSigCgt:\tfffffffffffffdff\n"));
  CHECK_FALSE(TakesNotices("Name:\tx\nSigIgn:\t0000000000000200\n"));
  CHECK_FALSE(TakesNotices(""));
}

ExitRecord Exited(int rank, int code, int64_t time_ns = 1) {
  return {.rank = rank, .end = RankEnd::kExited, .value = code, .time_ns = time_ns};
}

TEST_CASE("the limits of a host are checked against the needs of Open MPI") {
  CHECK_NOTHROW(CheckLimits({}, 1'000'000));
  CHECK_NOTHROW(CheckLimits({.files = 34, .processes = 10, .running = 3}, 2));
  const auto error = [](const Limits& limits, int ranks) -> std::string {
    try {
      CheckLimits(limits, ranks);
    } catch (const LaunchError& thrown) {
      CHECK(thrown.code() == ExitCode::kUnavailable);
      return thrown.what();
    }
    return "";
  };
  CHECK(
      error({.files = 29}, 1) ==
      "this host allows a process 29 open files; 1 rank needs 30 (ulimit -n 30 raises the limit)");
  CHECK(
      error({.processes = 9, .running = 3}, 2) ==
      "this host allows this user 9 processes and threads (ulimit -u), of which 3 run; 2 ranks "
      "need 7 more");
}

TEST_CASE("a job has saved if every rank has saved or had no work left") {
  CHECK(HaveSaved({Exited(0, 75), Exited(1, 75)}, 2, false));
  CHECK(HaveSaved({Exited(0, 0), Exited(1, 75)}, 2, false));
  CHECK(HaveSaved({Exited(0, 0), Exited(1, 0)}, 2, true));
  CHECK_FALSE(HaveSaved({Exited(0, 0), Exited(1, 0)}, 2, false));
  CHECK_FALSE(HaveSaved({Exited(0, 75)}, 2, true));
  CHECK_FALSE(HaveSaved({Exited(0, 75), Exited(1, 1)}, 2, true));
  CHECK_FALSE(HaveSaved({Exited(0, 75), {.rank = 1}}, 2, true));
}

TEST_CASE("a rank that still runs after another has saved is named after the grace time") {
  const std::vector<base::HostSlots> hosts = {{"h1", 1}, {"h2", 1}};
  const std::vector<ExitRecord> records = {Exited(0, 75, 5'000'000'000), {.rank = 1}};
  CHECK_FALSE(JudgeLate(records, hosts, 10s, 14'999'999'999));
  const auto late = JudgeLate(records, hosts, 10s, 15'000'000'000);
  REQUIRE(late);
  CHECK(late->exit_code == 76);
  CHECK(
      late->message ==
      "rank 1 on h2 still ran 10 s (--grace) after rank 0 had saved and ended with code 75");
  CHECK_FALSE(JudgeLate({Exited(0, 0), {.rank = 1}}, hosts, 10s, 1'000'000'000'000));
  CHECK_FALSE(JudgeLate({Exited(0, 75), Exited(1, 75)}, hosts, 10s, 1'000'000'000'000));
  CHECK_FALSE(JudgeLate(records, hosts, 0s, 5'999'999'999));
}

}  // namespace
}  // namespace dtrun::launcher
