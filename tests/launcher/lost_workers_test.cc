// The lost workers that a job with parameter servers can do without, and the messages about them.

#include <signal.h>

#include <catch2/catch.hpp>

#include "launcher/engines/launch_engine.h"
#include "launcher/job/rank_watch.h"
#include "launcher/report/job_story.h"

namespace dtrun::launcher {
namespace {

using Lines = std::vector<std::string>;

constexpr int64_t kMs = 1'000'000;
const std::vector<base::HostSlots> kTwoAndOneSlots = {{"h1", 2}, {"h2", 1}};

ExitRecord Running(int rank) { return {.rank = rank}; }
ExitRecord KilledAt(int rank, int64_t at_ms) {
  return {.rank = rank, .end = RankEnd::kSignaled, .value = SIGKILL, .time_ns = at_ms * kMs};
}
ExitRecord ExitedAt(int rank, int code, int64_t at_ms) {
  return {.rank = rank, .end = RankEnd::kExited, .value = code, .time_ns = at_ms * kMs};
}

TEST_CASE("a lost worker is reported once and does not affect the verdict on the job") {
  LostWorkers workers(1, kTwoAndOneSlots);
  const std::vector<ExitRecord> records = {Running(0), KilledAt(1, 1000), Running(2)};
  CHECK(workers.Update(records, 1100 * kMs).empty());
  CHECK(
      workers.Update(records, 1500 * kMs) ==
      Lines{"rank 1 on h1 was killed by SIGKILL; the job goes on without this worker (--ps)"});
  CHECK(workers.Update(records, 1600 * kMs).empty());
  CHECK_FALSE(workers.LastOne(records, 1600 * kMs));
  const std::vector<ExitRecord> marked =
      workers.Mark({ExitedAt(0, 3, 2000), KilledAt(1, 1000), ExitedAt(2, 76, 2001)});
  CHECK(
      JudgeFailure(marked, 3, kTwoAndOneSlots, LaunchEngines().front()->Explain(3, kTwoAndOneSlots))
          .message == "rank 0 on h1 exited with code 3");
  JobStory story;
  story.hosts = kTwoAndOneSlots;
  story.verdict = {3, "", 0};
  story.records = marked;
  CHECK(RoleOf(story, 1) == RankRole::kLost);
}

TEST_CASE("a worker that fails because of a server does not count as lost") {
  LostWorkers workers(1, kTwoAndOneSlots);
  CHECK(workers.Update({KilledAt(0, 1000), ExitedAt(1, 76, 1001), Running(2)}, 9000 * kMs).empty());
  CHECK(workers.Update({ExitedAt(0, 0, 2000), ExitedAt(1, 76, 1001), Running(2)}, 9000 * kMs)
            .empty());
}

TEST_CASE("if no worker is left then the job ends with the reason of the last one") {
  LostWorkers workers(1, kTwoAndOneSlots);
  const std::vector<ExitRecord> records = {Running(0), ExitedAt(1, 66, 1000), KilledAt(2, 1200)};
  CHECK(workers.Update(records, 5000 * kMs).empty());
  CHECK_FALSE(workers.LastOne(records, 1300 * kMs));
  const auto verdict = workers.LastOne(records, 5000 * kMs);
  REQUIRE(verdict);
  CHECK(verdict->exit_code == 137);
  CHECK(verdict->culprit == 2);
  CHECK(verdict->message == "rank 2 on h2 was killed by SIGKILL; no worker is left");
}

TEST_CASE("if a worker has finished its work then the loss of the last one does not end the job") {
  LostWorkers workers(1, kTwoAndOneSlots);
  const std::vector<ExitRecord> records = {Running(0), ExitedAt(1, 0, 1000), KilledAt(2, 1000)};
  CHECK(workers.Update(records, 5000 * kMs).size() == 1);
  CHECK_FALSE(workers.LastOne(records, 5000 * kMs));
}

ExitRecord EndedWithOthers(int rank, int64_t at_ms) {
  return {.rank = rank, .end = RankEnd::kSignaled, .value = SIGTERM, .time_ns = at_ms * kMs};
}
ExitRecord Gone(int rank, int64_t at_ms) { return {.rank = rank, .time_ns = at_ms * kMs}; }

TEST_CASE("a worker with a killed wrapper is lost like a killed worker") {
  LostWorkers workers(1, kTwoAndOneSlots);
  const std::vector<ExitRecord> records = {Running(0), Gone(1, 1000), Running(2)};
  CHECK(
      workers.Update(records, 1500 * kMs) ==
      Lines{"rank 1 on h1 was killed together with its wrapper; the job goes on without this "
            "worker (--ps)"});
}

TEST_CASE("a failed server ends the job and the rank that failed first is the culprit") {
  constexpr int64_t kNow = 1301 * kMs;
  LostWorkers workers(1, kTwoAndOneSlots);
  CHECK_FALSE(workers.LostServer({Running(0), KilledAt(1, 1000), Running(2)}, kNow));
  const auto server =
      workers.LostServer({ExitedAt(0, 76, 1300), Running(1), KilledAt(2, 1000)}, kNow);
  REQUIRE(server);
  CHECK(server->message == "rank 2 on h2 was killed by SIGKILL");
  const auto gone = workers.LostServer({Gone(0, 1300), Running(1), Running(2)}, kNow);
  REQUIRE(gone);
  CHECK(gone->exit_code == 137);
  CHECK(gone->message == "rank 0 on h1 was killed together with its wrapper");
  // A worker that has lost its server may end before the end of the server is known.
  CHECK(
      workers.LostServer({KilledAt(0, 1300), ExitedAt(1, 76, 1000), Running(2)}, kNow)->culprit ==
      0);
  // A worker that was lost long before is not the culprit.
  workers.Update({Running(0), KilledAt(1, 100), Running(2)}, 1000 * kMs);
  CHECK(
      workers.LostServer({KilledAt(0, 2000), KilledAt(1, 100), Running(2)}, 2001 * kMs)->culprit ==
      0);
}

TEST_CASE("a server that was ended with all other ranks is the culprit if no other rank is") {
  const LostWorkers workers(2, kTwoAndOneSlots);
  const std::vector<ExitRecord> ended = {Running(0), EndedWithOthers(1, 1000), Running(2)};
  CHECK_FALSE(workers.LostServer(ended, 1100 * kMs));
  CHECK(
      workers.LostServer({Gone(0, 1300), EndedWithOthers(1, 1000), Running(2)}, 1301 * kMs)
          ->culprit == 0);
  CHECK(workers.LostServer(ended, 1500 * kMs)->culprit == 1);
}

TEST_CASE("a host can be spared if it has only workers and other workers are left") {
  const LostWorkers workers(1, kTwoAndOneSlots);
  const std::vector<ExitRecord> running = {Running(0), Running(1), Running(2)};
  CHECK(workers.CanSpare(1, running));
  CHECK_FALSE(workers.CanSpare(0, running));
  CHECK_FALSE(workers.CanSpare(1, {Running(0), KilledAt(1, 1), Running(2)}));
  CHECK_FALSE(workers.CanSpare(1, {Running(0), Running(1)}));  // rank 2 may never have started
  CHECK_FALSE(workers.CanSpare(1, {KilledAt(0, 1), Running(1), Running(2)}));
  CHECK_FALSE(LostWorkers(0, kTwoAndOneSlots).CanSpare(1, running));
}

TEST_CASE("workers found lost at the end of the job are reported if the servers ended well") {
  LostWorkers workers(1, kTwoAndOneSlots);
  CHECK(workers.AtEnd({ExitedAt(0, 3, 2000), KilledAt(1, 1900), ExitedAt(2, 0, 2000)}).empty());
  const std::vector<ExitRecord> records = {
      ExitedAt(0, 0, 2000), KilledAt(1, 1900), ExitedAt(2, 0, 2000)};
  CHECK(
      workers.AtEnd(records) ==
      Lines{"rank 1 on h1 was killed by SIGKILL; the job went on without this worker (--ps)"});
  CHECK(workers.AllDone(records));
  CHECK(workers.AtEnd(records).empty());
}

TEST_CASE("the job is complete when the servers have ended well and no worker runs") {
  LostWorkers workers(1, kTwoAndOneSlots);
  ExitRecord lost = Running(2);
  lost.end = RankEnd::kHostLost;
  lost.time_ns = 1000 * kMs;
  const std::vector<ExitRecord> records = {ExitedAt(0, 0, 3000), ExitedAt(1, 0, 3000), lost};
  CHECK(workers.AllDone(records));
  CHECK(
      workers.Update({Running(0), Running(1), lost}, 2000 * kMs) ==
      Lines{"rank 2 on h2 was lost with its host; the job goes on without this worker (--ps)"});
  CHECK_FALSE(workers.AllDone({ExitedAt(0, 0, 3000), Running(1), lost}));
  CHECK_FALSE(workers.AllDone({ExitedAt(0, 1, 3000), ExitedAt(1, 0, 3000), lost}));
}

TEST_CASE("without parameter servers no rank counts as a lost worker") {
  LostWorkers workers(0, kTwoAndOneSlots);
  const std::vector<ExitRecord> records = {KilledAt(0, 1), KilledAt(1, 1), KilledAt(2, 1)};
  CHECK(workers.Update(records, 5000 * kMs).empty());
  CHECK_FALSE(workers.LastOne(records, 5000 * kMs));
  CHECK(workers.Mark(records) == records);
}

}  // namespace
}  // namespace dtrun::launcher
