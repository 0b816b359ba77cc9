// Whom a job with parameter servers goes on without, and what is said of it.

#include "launcher/lost_workers.h"

#include <signal.h>

#include <catch2/catch.hpp>

#include "launcher/job_story.h"

namespace dtrun::launcher {
namespace {

using Lines = std::vector<std::string>;

constexpr int64_t kMs = 1'000'000;
const std::vector<base::HostSlots> kHosts = {{"h1", 2}, {"h2", 1}};

ExitRecord Running(int rank) { return {.rank = rank}; }
ExitRecord Killed(int rank, int64_t at_ms) {
  return {.rank = rank, .end = RankEnd::kSignaled, .value = SIGKILL, .time_ns = at_ms * kMs};
}
ExitRecord Exited(int rank, int code, int64_t at_ms) {
  return {.rank = rank, .end = RankEnd::kExited, .value = code, .time_ns = at_ms * kMs};
}

TEST_CASE("a lost worker is said once, and has no part in what the job ends with") {
  LostWorkers workers(1, kHosts);
  const std::vector<ExitRecord> records = {Running(0), Killed(1, 1000), Running(2)};
  CHECK(workers.Update(records, 1100 * kMs).empty());
  CHECK(
      workers.Update(records, 1500 * kMs) ==
      Lines{"rank 1 on h1 was killed by SIGKILL; the job goes on without this worker (--ps)"});
  CHECK(workers.Update(records, 1600 * kMs).empty());
  CHECK_FALSE(workers.LastOne(records, 1600 * kMs));
  const std::vector<ExitRecord> marked =
      workers.Mark({Exited(0, 3, 2000), Killed(1, 1000), Exited(2, 76, 2001)});
  CHECK(JudgeFailure(marked, 3, kHosts).message == "rank 0 on h1 exited with code 3");
  JobStory story;
  story.hosts = kHosts;
  story.verdict = {3, "", 0};
  story.records = marked;
  CHECK(RoleOf(story, 1) == RankRole::kLost);
}

TEST_CASE("a worker that fails because a server does is no loss of its own") {
  LostWorkers workers(1, kHosts);
  CHECK(workers.Update({Killed(0, 1000), Exited(1, 76, 1001), Running(2)}, 9000 * kMs).empty());
  CHECK(workers.Update({Exited(0, 0, 2000), Exited(1, 76, 1001), Running(2)}, 9000 * kMs).empty());
}

TEST_CASE("without a worker the job ends, for the last one's reason") {
  LostWorkers workers(1, kHosts);
  const std::vector<ExitRecord> records = {Running(0), Exited(1, 66, 1000), Killed(2, 1200)};
  CHECK(workers.Update(records, 5000 * kMs).empty());
  CHECK_FALSE(workers.LastOne(records, 1300 * kMs));
  const auto verdict = workers.LastOne(records, 5000 * kMs);
  REQUIRE(verdict);
  CHECK(verdict->exit_code == 137);
  CHECK(verdict->culprit == 2);
  CHECK(verdict->message == "rank 2 on h2 was killed by SIGKILL; no worker is left");
}

TEST_CASE("workers that have done their work are none that are missed") {
  LostWorkers workers(1, kHosts);
  const std::vector<ExitRecord> records = {Running(0), Exited(1, 0, 1000), Killed(2, 1000)};
  CHECK(workers.Update(records, 5000 * kMs).size() == 1);
  CHECK_FALSE(workers.LastOne(records, 5000 * kMs));
}

TEST_CASE("in a job without servers nobody is spared") {
  LostWorkers workers(0, kHosts);
  const std::vector<ExitRecord> records = {Killed(0, 1), Killed(1, 1), Killed(2, 1)};
  CHECK(workers.Update(records, 5000 * kMs).empty());
  CHECK_FALSE(workers.LastOne(records, 5000 * kMs));
  CHECK(workers.Mark(records) == records);
}

}  // namespace
}  // namespace dtrun::launcher
