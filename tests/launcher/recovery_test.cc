// The reaction of a job to lost ranks that are started again: single rules, then random schedules
// of losses against a model of the ranks, their agents and the delays between them.

#include "launcher/job/recovery.h"

#include <signal.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <iterator>
#include <map>
#include <random>
#include <set>
#include <string>

#include "base/text.h"

namespace dtrun::launcher {
namespace {

using base::Text;
using Lines = std::vector<std::string>;

constexpr int64_t kMillisecond = 1'000'000;
const std::vector<base::HostSlots> kThreeRanks = {{"h1", 2}, {"h2", 1}};

ExitRecord Working(int rank, int epoch = 0) {
  return {
      .rank = rank, .pid = 100 + rank, .start_ns = 1, .state = {.joined = true, .epoch = epoch}};
}
ExitRecord LostAt(int rank, int64_t at_ms) {
  ExitRecord record = Working(rank);
  record.end = RankEnd::kSignaled;
  record.value = SIGKILL;
  record.time_ns = at_ms * kMillisecond;
  return record;
}
ExitRecord EndedAt(int rank, int code, int64_t at_ms, bool in_order = false) {
  ExitRecord record = Working(rank);
  record.end = RankEnd::kExited;
  record.value = code;
  record.time_ns = at_ms * kMillisecond;
  record.in_order = in_order;
  return record;
}

TEST_CASE("a killed rank is started again in a new epoch, and a line tells when all go on") {
  Recovery recovery({.restarts = 2}, kThreeRanks);
  CHECK(recovery.Update({Working(0), Working(1), Working(2)}, 900 * kMillisecond).lines.empty());
  const auto lost = recovery.Update({Working(0), LostAt(1, 1000), Working(2)}, 1005 * kMillisecond);
  CHECK(
      lost.lines ==
      Lines{"rank 1 on h1 was killed by SIGKILL; the rank is started again (restart 1 of 2)"});
  REQUIRE(lost.epoch);
  CHECK(lost.epoch->number == 1);
  CHECK(lost.epoch->why.text == "rank 1 on h1 was killed by SIGKILL");
  CHECK(lost.epoch->why.lost == std::vector{1});
  CHECK(lost.restart == std::vector<int>{1});
  CHECK_FALSE(lost.end);
  // The record is the old one until the new process runs.
  const auto same = recovery.Update({Working(0), LostAt(1, 1000), Working(2)}, 1010 * kMillisecond);
  CHECK((same.lines.empty() && same.restart.empty() && !same.epoch));
  CHECK(recovery.Update({Working(0, 1), Working(1), Working(2, 1)}, 1200 * kMillisecond)
            .lines.empty());
  CHECK(
      recovery.Update({Working(0, 1), Working(1, 1), Working(2, 1)}, 1410 * kMillisecond).lines ==
      Lines{"all 3 ranks go on, 0.41 s after the loss"});
  REQUIRE(recovery.losses().size() == 1);
  CHECK(recovery.losses()[0].recovered_ns - recovery.losses()[0].lost_ns == 410 * kMillisecond);
}

TEST_CASE("ranks that give up because of the lost rank are started again without further cost") {
  Recovery recovery({.restarts = 1}, kThreeRanks);
  recovery.Update({Working(0), LostAt(1, 1000), Working(2)}, 1001 * kMillisecond);
  const auto more = recovery.Update(
      {EndedAt(0, 76, 1002), LostAt(1, 1000), EndedAt(2, 76, 1002)}, 1003 * kMillisecond);
  CHECK(more.restart == std::vector<int>{0, 2});
  CHECK(more.epoch->number == 2);
  CHECK_FALSE(more.end);
  CHECK(recovery.used() == 1);
}

TEST_CASE("the job ends with the reason of a loss for which no restart is left") {
  Recovery recovery({.restarts = 1}, kThreeRanks);
  recovery.Update({LostAt(0, 1000), Working(1), Working(2)}, 1001 * kMillisecond);
  recovery.Update({Working(0, 1), Working(1, 1), Working(2, 1)}, 1500 * kMillisecond);
  const auto orders =
      recovery.Update({Working(0, 1), Working(1, 1), LostAt(2, 2000)}, 2001 * kMillisecond);
  REQUIRE(orders.end);
  CHECK(orders.end->exit_code == 128 + SIGKILL);
  CHECK(
      orders.end->message ==
      "rank 2 on h2 was killed by SIGKILL; --restarts 1 allows no further restart");
  CHECK(orders.restart.empty());
}

TEST_CASE("no rank is started again after an end that would only happen again") {
  const int code = GENERATE(2, 66, 126, 127);
  Recovery recovery({.restarts = 9}, kThreeRanks);
  const auto orders =
      recovery.Update({EndedAt(0, code, 10), Working(1), Working(2)}, 11 * kMillisecond);
  REQUIRE(orders.end);
  CHECK(orders.end->exit_code == code);
  CHECK(orders.restart.empty());
}

TEST_CASE("an error that all ranks have agreed on before Shutdown ends the job") {
  Recovery recovery({.restarts = 9}, kThreeRanks);
  const auto orders =
      recovery.Update({EndedAt(0, 65, 10, true), Working(1), Working(2)}, 11 * kMillisecond);
  REQUIRE(orders.end);
  CHECK(orders.end->exit_code == 65);
}

TEST_CASE("the job ends well when all ranks have done their work") {
  Recovery recovery({.restarts = 9}, kThreeRanks);
  const auto end = recovery
                       .Update(
                           {EndedAt(0, 0, 5, true), EndedAt(1, 0, 6, true), EndedAt(2, 0, 7, true)},
                           kMillisecond)
                       .end;
  REQUIRE(end);
  CHECK(end->exit_code == 0);
}

TEST_CASE("a rank that is lost after the work was done is not needed, except rank 0") {
  const int lost = GENERATE(0, 2);
  Recovery recovery({.restarts = 9}, kThreeRanks);
  std::vector<ExitRecord> records = {EndedAt(0, 0, 5, true), EndedAt(1, 0, 6, true), Working(2)};
  if (lost == 0) std::swap(records[0].rank, records[2].rank);
  recovery.Update(records, 8 * kMillisecond);
  records[2] = LostAt(lost, 9);
  const auto orders = recovery.Update(records, 10 * kMillisecond);
  REQUIRE(orders.end);
  CHECK(orders.end->exit_code == (lost == 0 ? 128 + SIGKILL : 0));
  if (lost == 2)
    CHECK(
        orders.lines == Lines{"rank 2 on h2 was killed by SIGKILL; all ranks had done their work"});
}

TEST_CASE("ranks that wait for one that has done its work end the job well") {
  Recovery recovery({.restarts = 9}, kThreeRanks);
  recovery.Update({Working(0), LostAt(1, 1000), Working(2)}, 1001 * kMillisecond);
  ExitRecord waiting = Working(2);
  const auto update = [&](int64_t at_ms) {
    return recovery.Update({EndedAt(0, 0, 1002, true), Working(1), waiting}, at_ms * kMillisecond)
        .end;
  };
  CHECK_FALSE(update(1500));  // perhaps rank 2 writes results
  waiting.state.init_ns = 1600 * kMillisecond;
  ExitRecord starting = Working(1);
  starting.state = {.init_ns = 1600 * kMillisecond};
  const auto end =
      recovery.Update({EndedAt(0, 0, 1002, true), starting, waiting}, 1700 * kMillisecond).end;
  REQUIRE(end);
  CHECK(end->exit_code == 0);
}

TEST_CASE("a rank that does not start again ends the job") {
  Recovery recovery({.restarts = 9, .start_timeout = std::chrono::seconds(3)}, kThreeRanks);
  const std::vector<ExitRecord> records = {Working(0), Working(1), LostAt(2, 1000)};
  CHECK_FALSE(recovery.Update(records, 1001 * kMillisecond).end);
  CHECK_FALSE(recovery.Update(records, 4000 * kMillisecond).end);
  const auto end = recovery.Update(records, 4002 * kMillisecond).end;
  REQUIRE(end);
  CHECK(end->exit_code == 69);
  CHECK(end->message == "rank 2 on h2 had not started again after 3 s (--start-timeout)");
}

TEST_CASE("a rank that exits with code 0 without Shutdown ends a job that waits for it") {
  Recovery recovery({.restarts = 9}, kThreeRanks);
  const std::vector<ExitRecord> records = {Working(0), EndedAt(1, 0, 1000), Working(2)};
  CHECK_FALSE(recovery.Update(records, 1001 * kMillisecond).end);
  const auto end = recovery.Update(records, 3500 * kMillisecond).end;
  REQUIRE(end);
  CHECK(end->exit_code == 76);
  CHECK(end->message == "rank 1 on h1 exited with code 0 without Shutdown; that ended the job");
}

TEST_CASE(
    "a rank that ends again without having joined is started after longer and longer pauses") {
  CHECK(Recovery::Pause(0) == std::chrono::milliseconds(0));
  CHECK(Recovery::Pause(1) == std::chrono::milliseconds(250));
  CHECK(Recovery::Pause(2) == std::chrono::milliseconds(500));
  CHECK(Recovery::Pause(50) == std::chrono::seconds(30));
  Recovery recovery({.restarts = 9}, kThreeRanks);
  CHECK(
      recovery.Update({Working(0), LostAt(1, 1000), Working(2)}, 1000 * kMillisecond)
          .restart.size() == 1);
  ExitRecord starting = Working(1);
  starting.state.joined = false;
  starting.start_ns = 1050 * kMillisecond;
  recovery.Update({Working(0), starting, Working(2)}, 1050 * kMillisecond);
  ExitRecord again = LostAt(1, 1100);
  again.state.joined = false;
  again.start_ns = starting.start_ns;
  CHECK(recovery.Update({Working(0), again, Working(2)}, 1100 * kMillisecond).restart.empty());
  CHECK(recovery.Update({Working(0), again, Working(2)}, 1340 * kMillisecond).restart.empty());
  CHECK(
      recovery.Update({Working(0), again, Working(2)}, 1351 * kMillisecond).restart ==
      std::vector<int>{1});
}

// ---- Jobs that change their size ----------------------------------------------------------------

const std::vector<base::HostSlots> kTwoHosts = {{"h1", 2}, {"h2", 2}};

ExitRecord LostWithHostAt(int rank, int64_t at_ms) {
  ExitRecord record = Working(rank);
  record.end = RankEnd::kHostLost;
  record.time_ns = at_ms * kMillisecond;
  return record;
}
ExitRecord WaitingInInit(int rank, int64_t since_ms) {
  ExitRecord record = Working(rank);
  record.state = {.init_ns = since_ms * kMillisecond};
  return record;
}

TEST_CASE("a job goes on without the ranks of a lost host if enough ranks are left") {
  Recovery recovery({.restarts = 9, .min_ranks = 2}, kTwoHosts);
  recovery.Update({Working(0), Working(1), Working(2), Working(3)}, 900 * kMillisecond);
  recovery.places().LoseHost(0);
  const auto orders = recovery.Update(
      {LostWithHostAt(0, 1000), LostWithHostAt(1, 1000), Working(2), Working(3)},
      1001 * kMillisecond);
  CHECK_FALSE(orders.end);
  CHECK(orders.lines == Lines{"rank 0 on h1 was lost with its host; the job goes on with 2 ranks"});
  REQUIRE(orders.epoch);
  CHECK_FALSE(orders.epoch->paused);
  CHECK(orders.restart.empty());
  CHECK(recovery.places().members() == std::set<int>{2, 3});
  const auto layout = recovery.places().LayoutOf(recovery.places().members());
  CHECK(layout.hosts == std::vector<base::HostSlots>{{"h2", 2}});
  CHECK(layout.members == std::vector<int>{2, 3});
  CHECK(layout.first_host == 1);
  const std::vector<ExitRecord> later = {
      LostWithHostAt(0, 1000), LostWithHostAt(1, 1000), Working(2, 1), Working(3, 1)};
  CHECK(
      recovery.Update(later, 1200 * kMillisecond).lines ==
      Lines{"all 2 ranks go on, 0.20 s after the loss"});
  CHECK(recovery.losses()[0].left == std::vector<int>{0, 1});
  CHECK(recovery.Mark(later)[1].spared);
  CHECK_FALSE(recovery.Mark(later)[2].spared);
}

TEST_CASE("a job with too few ranks waits for a host, and its ranks are started there") {
  Recovery recovery({.restarts = 9, .min_ranks = 3}, kTwoHosts);
  recovery.places().LoseHost(1);
  const std::vector<ExitRecord> records = {
      Working(0), Working(1), LostWithHostAt(2, 1000), LostWithHostAt(3, 1000)};
  const auto waits = recovery.Update(records, 1001 * kMillisecond);
  CHECK(
      waits.lines ==
      Lines{"rank 2 on h2 was lost with its host; 2 ranks left of at least 3 (--min-np): the job "
            "waits for hosts"});
  REQUIRE(waits.epoch);
  CHECK(waits.epoch->paused);
  CHECK(recovery.is_paused());
  CHECK_FALSE(recovery.Update(records, 5000 * kMillisecond).end);
  recovery.places().Seat(2, 2, "h3");
  const auto resumes = recovery.Update(records, 6000 * kMillisecond);
  CHECK(resumes.lines == Lines{"hosts have come; the job goes on with 3 ranks"});
  REQUIRE(resumes.epoch);
  CHECK_FALSE(resumes.epoch->paused);
  CHECK(resumes.restart == std::vector<int>{2});
  CHECK(recovery.places().members() == std::set<int>{0, 1, 2});
  CHECK(recovery.places().Vacant() == 3);
}

TEST_CASE("a job that waits for hosts in vain ends and says what it lacks") {
  Recovery recovery(
      {.restarts = 9, .min_ranks = 3, .elastic_timeout = std::chrono::seconds(5)}, kTwoHosts);
  recovery.places().LoseHost(1);
  const std::vector<ExitRecord> records = {
      Working(0), Working(1), LostWithHostAt(2, 1000), LostWithHostAt(3, 1000)};
  CHECK_FALSE(recovery.Update(records, 1001 * kMillisecond).end);
  CHECK_FALSE(recovery.Update(records, 5900 * kMillisecond).end);
  const auto end = recovery.Update(records, 6100 * kMillisecond).end;
  REQUIRE(end);
  CHECK(end->exit_code == 69);
  CHECK(
      end->message ==
      "rank 2 on h2 was lost with its host; 2 ranks were left, expected at least 3 (--min-np), "
      "and no host came within 5 s (--elastic-timeout)");
}

TEST_CASE("a rank on a new host becomes a member when it waits in Init") {
  Recovery recovery({.restarts = 9, .min_ranks = 2}, {{"h1", 2}});
  const std::vector<ExitRecord> two = {Working(0), Working(1)};
  recovery.Update(two, 100 * kMillisecond);
  recovery.places().Seat(2, 1, "h2");
  const auto starts = recovery.Update(two, 200 * kMillisecond);
  CHECK(starts.restart == std::vector<int>{2});
  CHECK_FALSE(starts.epoch);
  ExitRecord starting = Working(2);
  starting.state = {};
  CHECK_FALSE(recovery.Update({Working(0), Working(1), starting}, 300 * kMillisecond).epoch);
  const auto joins =
      recovery.Update({Working(0), Working(1), WaitingInInit(2, 400)}, 400 * kMillisecond);
  CHECK(joins.lines == Lines{"rank 2 on h2 joins; the job goes on with 3 ranks"});
  REQUIRE(joins.epoch);
  CHECK(joins.epoch->number == 1);
  CHECK(recovery.places().members() == std::set<int>{0, 1, 2});
  CHECK(
      recovery.Update({Working(0, 1), Working(1, 1), Working(2, 1)}, 450 * kMillisecond).lines ==
      Lines{"all 3 ranks go on, 0.05 s after the change"});
  CHECK(recovery.used() == 0);
}

TEST_CASE("a rank that ends before it has joined leaves the job as it is") {
  Recovery recovery({.restarts = 9, .min_ranks = 2}, {{"h1", 2}});
  const std::vector<ExitRecord> two = {Working(0), Working(1)};
  recovery.Update(two, 100 * kMillisecond);
  recovery.places().Seat(2, 1, "h2");
  recovery.Update(two, 200 * kMillisecond);
  ExitRecord failed = EndedAt(2, 2, 300);
  failed.state = {};
  const auto orders = recovery.Update({Working(0), Working(1), failed}, 300 * kMillisecond);
  CHECK_FALSE(orders.end);
  CHECK_FALSE(orders.epoch);
  CHECK(
      orders.lines == Lines{"rank 2 on h2 exited with code 2 before it had joined the job; the "
                            "job goes on without it"});
  CHECK(recovery.places().Vacant() == 3);  // its process may still run there
  CHECK(recovery.Update({Working(0), Working(1), failed}, 400 * kMillisecond).restart.empty());
}

TEST_CASE("without restarts left, a rank leaves if enough ranks remain") {
  Recovery recovery({.restarts = 1, .min_ranks = 2}, kThreeRanks);
  recovery.Update({LostAt(0, 1000), Working(1), Working(2)}, 1001 * kMillisecond);
  recovery.Update({Working(0, 1), Working(1, 1), Working(2, 1)}, 1500 * kMillisecond);
  const auto leaves =
      recovery.Update({Working(0, 1), Working(1, 1), LostAt(2, 2000)}, 2001 * kMillisecond);
  CHECK(leaves.lines == Lines{"rank 2 on h2 was killed by SIGKILL; the job goes on with 2 ranks"});
  const auto ends =
      recovery.Update({Working(0, 2), LostAt(1, 3000), LostAt(2, 2000)}, 3001 * kMillisecond).end;
  REQUIRE(ends);
  CHECK(ends->exit_code == 128 + SIGKILL);
}

// ---- Random schedules ---------------------------------------------------------------------------

// A process as it is. The records that Recovery sees follow a little later.
struct Process {
  enum class Phase { kStarting, kInInit, kWorks, kDead, kDone } phase = Phase::kStarting;
  int epoch = 0;        // that it has joined, or waits to join
  int64_t next_ms = 0;  // of its next action
  ExitRecord record = {};
};

struct SimulatedHost {
  int slots;
  std::set<int> ranks = {};
  bool is_lost = false;
};

TEST_CASE("a program that ends at once after its new start is done") {
  Recovery recovery({.restarts = 1}, {{"h1", 2}});
  const auto lost = recovery.Update({EndedAt(0, 0, 900), EndedAt(1, 3, 1000)}, 1005 * kMillisecond);
  CHECK(lost.restart == std::vector<int>{1});
  ExitRecord done = EndedAt(1, 0, 1020);
  done.start_ns = 1015 * kMillisecond;
  const auto end = recovery.Update({EndedAt(0, 0, 900), done}, 1025 * kMillisecond);
  REQUIRE(end.end);
  CHECK(end.end->exit_code == 0);
}

// ---- All ranks together -------------------------------------------------------------------------

ExitRecord GoneAt(int rank, int64_t at_ms) {
  ExitRecord record = LostAt(rank, at_ms);
  record.end = RankEnd::kRunning;
  return record;
}
ExitRecord StartedAt(int rank, int64_t at_ms, int epoch) {
  ExitRecord record = Working(rank, epoch);
  record.start_ns = at_ms * kMillisecond;
  return record;
}

TEST_CASE("an engine that cannot replace a rank starts all ranks again when all have ended") {
  Recovery recovery({.restarts = 2, .all_together = true}, kThreeRanks);
  recovery.Update({Working(0), Working(1), Working(2)}, 900 * kMillisecond);
  ExitRecord lost = LostAt(1, 1000);
  lost.step = 8;
  const auto stop = recovery.Update({Working(0), lost, Working(2)}, 1005 * kMillisecond);
  CHECK(
      stop.lines == Lines{"rank 1 on h1 was killed by SIGKILL in step 9; the job is started again "
                          "(restart 1 of 2)"});
  CHECK(stop.stop);
  CHECK(stop.restart.empty());
  CHECK(recovery.is_stopping());
  CHECK(recovery.Update({GoneAt(0, 1010), lost, Working(2)}, 1015 * kMillisecond).restart.empty());
  ExitRecord victim = GoneAt(2, 1020);
  victim.kept_step = 7;
  const auto start = recovery.Update({GoneAt(0, 1010), lost, victim}, 1025 * kMillisecond);
  CHECK(start.lines.empty());
  CHECK(start.restart == std::vector<int>{0, 1, 2});
  CHECK(recovery.used() == 1);
  const auto back = recovery.Update(
      {StartedAt(0, 1500, 1), StartedAt(1, 1500, 1), StartedAt(2, 1500, 1)}, 2000 * kMillisecond);
  CHECK(back.lines == Lines{"all 3 ranks go on, 1.00 s after the loss; 1 step is computed again"});
  REQUIRE(recovery.losses().size() == 1);
  CHECK(recovery.losses()[0].ranks == std::vector<int>{1});
  CHECK(recovery.losses()[0].steps_lost == 1);
}

TEST_CASE("of several wrappers that are gone, the one that the engine saw first is the lost one") {
  Recovery recovery({.restarts = 2, .all_together = true}, kThreeRanks);
  recovery.Suspect(2);
  // The end of rank 2 comes from another host.
  const auto early =
      recovery.Update({GoneAt(0, 1000), GoneAt(1, 1000), Working(2)}, 1010 * kMillisecond);
  CHECK(early.lines.empty());
  const auto lost =
      recovery.Update({GoneAt(0, 1000), GoneAt(1, 1000), GoneAt(2, 1001)}, 1020 * kMillisecond);
  REQUIRE(lost.lines.size() == 1);
  CHECK(lost.lines[0].find("rank 2 on h2 was killed together with its wrapper") == 0);
  CHECK(recovery.losses()[0].ranks == std::vector<int>{2});
}

TEST_CASE("a rank that the engine has ended with SIGTERM is not the lost one") {
  Recovery recovery({.restarts = 2, .all_together = true}, kThreeRanks);
  ExitRecord ended = LostAt(0, 1010);
  ended.value = SIGTERM;
  // The end of rank 2 comes from another host.
  CHECK(recovery.Update({ended, Working(1), Working(2)}, 1015 * kMillisecond).lines.empty());
  const auto lost = recovery.Update({ended, Working(1), LostAt(2, 1000)}, 1100 * kMillisecond);
  REQUIRE(lost.lines.size() == 1);
  CHECK(lost.lines[0].find("rank 2 on h2 was killed by SIGKILL") == 0);
}

TEST_CASE("a wrapper that is found gone after its victims is the lost one") {
  Recovery recovery({.restarts = 2, .all_together = true}, kThreeRanks);
  ExitRecord ended = LostAt(2, 1000);
  ended.value = SIGTERM;
  CHECK(recovery.Update({Working(0), Working(1), ended}, 1005 * kMillisecond).lines.empty());
  const std::vector<ExitRecord> all = {GoneAt(0, 1003), GoneAt(1, 1004), ended};
  CHECK(recovery.Update(all, 1010 * kMillisecond).lines.empty());
  const auto lost = recovery.Update(all, 1500 * kMillisecond);
  REQUIRE(lost.lines.size() == 1);
  CHECK(lost.lines[0].find("rank 0 on h1 was killed together with its wrapper") == 0);
}

TEST_CASE("a rank that somebody has ended with SIGTERM is the lost one a little later") {
  Recovery recovery({.restarts = 2, .all_together = true}, kThreeRanks);
  ExitRecord ended = LostAt(0, 1000);
  ended.value = SIGTERM;
  CHECK(recovery.Update({ended, Working(1), Working(2)}, 1400 * kMillisecond).lines.empty());
  const auto lost = recovery.Update({ended, Working(1), Working(2)}, 1500 * kMillisecond);
  REQUIRE(lost.lines.size() == 1);
  CHECK(lost.lines[0].find("rank 0 on h1 was killed by SIGTERM") == 0);
  CHECK(lost.stop);
}

TEST_CASE("ranks that may have just started are heard of before the job starts again") {
  Recovery recovery({.restarts = 1, .all_together = true}, {{"h1", 2}});
  CHECK(recovery.Update({EndedAt(1, 3, 1000)}, 1005 * kMillisecond).stop);
  ExitRecord late = StartedAt(0, 1006, 0);
  CHECK(recovery.Update({late, EndedAt(1, 3, 1000)}, 1007 * kMillisecond).restart.empty());
  late.time_ns = 1008 * kMillisecond;
  const auto start = recovery.Update({late, EndedAt(1, 3, 1000)}, 1009 * kMillisecond);
  CHECK(start.restart == std::vector<int>{0, 1});
  CHECK(recovery.used() == 1);
}

TEST_CASE("a rank of which nothing is heard does not keep the job from starting again") {
  Recovery recovery({.restarts = 1, .all_together = true}, {{"h1", 2}});
  CHECK(recovery.Update({EndedAt(1, 3, 1000)}, 1005 * kMillisecond).restart.empty());
  const auto start = recovery.Update({EndedAt(1, 3, 1000)}, 1505 * kMillisecond);
  CHECK(start.restart == std::vector<int>{0, 1});
  ExitRecord late = GoneAt(0, 1506);  // of the process before
  late.start_ns = late.pid = 0;
  CHECK_FALSE(recovery.Update({late, EndedAt(1, 3, 1000)}, 1510 * kMillisecond).end);
  CHECK(recovery.used() == 1);
}

TEST_CASE("ranks that are lost after rank 0 has done its work are not started again") {
  Recovery recovery({.restarts = 2, .all_together = true}, kThreeRanks);
  recovery.Update({Working(0), Working(1), Working(2)}, 900 * kMillisecond);
  const auto end = recovery.Update(
      {EndedAt(0, 0, 1000, true), LostAt(1, 1001), EndedAt(2, 0, 1000, true)}, 1005 * kMillisecond);
  CHECK_FALSE(end.stop);
  const auto done = recovery.Update(
      {EndedAt(0, 0, 1000, true), LostAt(1, 1001), EndedAt(2, 0, 1000, true)}, 1010 * kMillisecond);
  REQUIRE((end.end || done.end));
  CHECK((end.end ? end.end : done.end)->exit_code == 0);
}

TEST_CASE("ranks that are lost while rank 0 may still write results are started again with it") {
  Recovery recovery({.restarts = 2, .all_together = true}, kThreeRanks);
  recovery.Update({Working(0), Working(1), Working(2)}, 900 * kMillisecond);
  const auto stop = recovery.Update(
      {Working(0), LostAt(1, 1001), EndedAt(2, 0, 1000, true)}, 1005 * kMillisecond);
  CHECK(stop.stop);
  CHECK_FALSE(stop.end);
}

TEST_CASE("a lost host and its ranks are one loss of a job that starts again") {
  Recovery recovery({.restarts = 1, .all_together = true}, {{"h1", 2}, {"h2", 2}});
  recovery.Update({Working(0), Working(1), Working(2), Working(3)}, 900 * kMillisecond);
  const auto first =
      recovery.Update({LostAt(0, 1000), Working(1), Working(2), Working(3)}, 1005 * kMillisecond);
  CHECK(first.stop);
  recovery.places().LoseHost(1);
  for (const int rank : {2, 3}) recovery.places().Seat(rank, 2, "h3");
  std::vector<ExitRecord> lost = {
      LostAt(0, 1000), GoneAt(1, 1001), LostAt(2, 5000), LostAt(3, 5000)};
  lost[2].end = lost[3].end = RankEnd::kHostLost;
  const auto start = recovery.Update(lost, 5005 * kMillisecond);
  CHECK_FALSE(start.end);
  CHECK(recovery.used() == 1);
  CHECK(start.restart == std::vector<int>{0, 1, 2, 3});
}

// A job on hosts. With a minimum of ranks, hosts are lost and come.
class Simulation {
 public:
  Simulation(unsigned seed, int restarts, bool is_elastic)
      : random_(seed),
        hosts_(FirstHosts(is_elastic)),
        restarts_(restarts),
        most_(RankCount() + (is_elastic ? Draw(0, 2) : 0)),
        least_(is_elastic ? Draw(1, RankCount()) : 0),
        recovery_({.restarts = restarts, .min_ranks = least_}, Slots()) {
    faults_end_ms_ = Draw(0, 4000);
    int rank = 0;
    for (SimulatedHost& host : hosts_)
      for (int slot = 0; slot < host.slots; ++slot) host.ranks.insert(rank++);
    members_ = recovery_.places().members();
    for (const int member : members_) Start(member, false);
  }

  // Returns the broken promise, or "".
  std::string Run() {
    for (; now_ms_ < 200'000; now_ms_ += Draw(1, 20)) {
      Fault();
      if (least_ > 0) ChangeHosts();
      for (auto& [rank, process] : processes_) Act(process);
      Meet();
      Report();
      if (const std::string broken = Obey(); !broken.empty() || over_) return broken;
    }
    return Text("the job has not ended; epoch ", epoch_);
  }

 private:
  using Phase = Process::Phase;

  int Draw(int least, int most) { return std::uniform_int_distribution<int>(least, most)(random_); }

  std::vector<SimulatedHost> FirstHosts(bool is_elastic) {
    std::vector<SimulatedHost> hosts;
    for (int host = is_elastic ? Draw(1, 3) : 1; host > 0; --host)
      hosts.push_back({.slots = Draw(1, is_elastic ? 3 : 5)});
    return hosts;
  }
  std::vector<base::HostSlots> Slots() const {
    std::vector<base::HostSlots> slots;
    for (size_t host = 0; host < hosts_.size(); ++host)
      slots.push_back({Text("h", host), hosts_[host].slots});
    return slots;
  }
  int RankCount() const { return base::RankCount(Slots()); }

  void Start(int rank, bool again) {
    Process& process = processes_[rank];
    process = {.next_ms = now_ms_ + Draw(1, 300)};
    process.record = {.rank = rank, .pid = ++last_pid_, .start_ns = now_ms_ * kMillisecond + 1};
    if (again) ++starts_;
  }

  // Kills any process in any phase, sometimes two at once. Rarely kills within a restart's start.
  void Fault() {
    if (now_ms_ > faults_end_ms_) return;
    while (Draw(0, 40) == 0) {
      auto chosen = processes_.begin();
      std::advance(chosen, Draw(0, static_cast<int>(processes_.size()) - 1));
      Process& process = chosen->second;
      if (process.phase == Phase::kDead || process.phase == Phase::kDone) continue;
      process.phase = Phase::kDead;
      process.record.end = Draw(0, 3) == 0 ? RankEnd::kExited : RankEnd::kSignaled;
      process.record.value = process.record.end == RankEnd::kExited ? 76 : SIGKILL;
      process.record.time_ns = now_ms_ * kMillisecond + 1;
      ++deaths_;
    }
  }

  // The launcher marks the records of a lost host itself.
  void ChangeHosts() {
    const bool is_late = now_ms_ > faults_end_ms_;
    if (Draw(0, is_late ? 20 : 60) == 0) hosts_.push_back({.slots = Draw(1, 3)});
    const auto host = static_cast<size_t>(Draw(0, static_cast<int>(hosts_.size()) - 1));
    if (!is_late && Draw(0, 40) == 0 && !hosts_[host].is_lost) {
      hosts_[host].is_lost = true;
      for (const int rank : hosts_[host].ranks) {
        Process& process = processes_[rank];
        if (process.phase == Phase::kDone) continue;
        if (process.record.end != RankEnd::kRunning && process.phase != Phase::kDead) continue;
        ++deaths_;
        process.phase = Phase::kDead;
        process.record.rank = rank;
        process.record.end = RankEnd::kHostLost;
        process.record.time_ns = now_ms_ * kMillisecond + 1;
        Seen(rank) = process.record;
      }
      recovery_.places().LoseHost(static_cast<int>(host));
    }
    Seat();
  }

  void Seat() {
    Membership& places = recovery_.places();
    for (size_t i = 0; i < hosts_.size(); ++i) {
      SimulatedHost& host = hosts_[i];
      while (!host.is_lost && static_cast<int>(host.ranks.size()) < host.slots) {
        const std::set<int> homeless = places.Homeless();
        const auto taken = static_cast<int>(places.members().size() + places.Joiners().size());
        if (homeless.empty() && taken >= most_) return;
        const int rank = homeless.empty() ? places.Vacant() : *homeless.begin();
        places.Seat(rank, static_cast<int>(i), Text("h", i));
        host.ranks.insert(rank);
      }
    }
  }

  void Act(Process& process) {
    const bool is_due = now_ms_ >= process.next_ms;
    if (process.phase == Phase::kStarting && is_due) process.phase = Phase::kInInit;
    if (process.phase == Phase::kInInit) process.epoch = epoch_;
    // A rank that works sees a new epoch at its next operation.
    if (process.phase == Phase::kWorks && process.epoch != epoch_ && Draw(0, 3) == 0)
      process.phase = Phase::kInInit;
    process.record.state.init_ns = process.phase == Phase::kInInit ? now_ms_ * kMillisecond + 1 : 0;
  }

  bool AllMembersAre(Phase phase) const {
    return std::all_of(members_.begin(), members_.end(), [&](int member) {
      const Process& process = processes_.at(member);
      return process.phase == phase && process.epoch == epoch_;
    });
  }

  // Members leave Init, or the job, together.
  void Meet() {
    if (paused_) return;
    if (AllMembersAre(Phase::kInInit)) {
      for (const int member : members_) {
        Process& process = processes_[member];
        process.phase = Phase::kWorks;
        process.record.state = {.joined = true, .epoch = process.epoch};
      }
      works_until_ms_ = now_ms_ + Draw(100, 3000);
    } else if (
        AllMembersAre(Phase::kWorks) && now_ms_ >= works_until_ms_ && now_ms_ > faults_end_ms_) {
      for (const int member : members_) {
        Process& process = processes_[member];
        process.phase = Phase::kDone;
        process.record.end = RankEnd::kExited;
        process.record.time_ns = now_ms_ * kMillisecond + 1;
        process.record.in_order = true;
      }
    }
  }

  ExitRecord& Seen(int rank) {
    for (ExitRecord& record : seen_)
      if (record.rank == rank) return record;
    return seen_.emplace_back(ExitRecord{.rank = rank});
  }

  // The agents report some ranks now and the others later. A rank that was killed and started again
  // in between has reported its end first.
  void Report() {
    for (const auto& [rank, process] : processes_)
      if (Draw(0, 2) != 0) Seen(rank) = process.record;
  }

  std::string Obey() {
    const Recovery::Orders orders = recovery_.Update(seen_, now_ms_ * kMillisecond + 2);
    if (orders.epoch) {
      if (orders.epoch->number <= epoch_)
        return Text("epoch ", orders.epoch->number, " follows ", epoch_);
      epoch_ = orders.epoch->number;
      paused_ = orders.epoch->paused;
      members_ = recovery_.places().members();
      if (static_cast<int>(members_.size()) < least_) return "fewer members than --min-np";
      if (static_cast<int>(members_.size()) > most_) return "more members than --max-np";
      if (!paused_ && !recovery_.places().Homeless().empty()) return "a member has no host";
    }
    for (const int rank : orders.restart) {
      const int host = recovery_.places().HostOf(rank);
      if (host < 0 || hosts_[static_cast<size_t>(host)].is_lost)
        return Text("rank ", rank, " is started without a host");
      const auto process = processes_.find(rank);
      if (process != processes_.end() && process->second.phase != Phase::kDead)
        return Text("rank ", rank, " is started again while it runs");
      Start(rank, true);
    }
    if (least_ == 0 && recovery_.used() > restarts_ && !orders.end)
      return "more restarts than allowed";
    if (recovery_.used() > deaths_) return "more restarts than deaths";
    if (!orders.end) return "";
    over_ = true;
    // All members have ended together. A rank may have joined too late for that.
    const bool done = std::any_of(processes_.begin(), processes_.end(), [](const auto& process) {
      return process.second.phase == Phase::kDone;
    });
    if (orders.end->exit_code == 0 && !done) return "the job ended before all ranks had";
    if (orders.end->exit_code != 0 && recovery_.used() <= restarts_)
      return "the job failed with restarts left: " + orders.end->message;
    if (least_ == 0 && orders.end->exit_code == 0 && starts_ != deaths_)
      return Text(deaths_, " deaths, but ", starts_, " starts");
    for (const Loss& loss : recovery_.losses())
      if (orders.end->exit_code == 0 && loss.joined.empty() && loss.recovered_ns < loss.lost_ns)
        return "a loss has no end";
    return "";
  }

  std::mt19937 random_;
  std::vector<SimulatedHost> hosts_;
  int restarts_, most_, least_;
  Recovery recovery_;
  std::map<int, Process> processes_;  // by launch number
  std::set<int> members_;             // of the current epoch
  std::vector<ExitRecord> seen_;
  int64_t now_ms_ = 0, faults_end_ms_ = 0, works_until_ms_ = 0;
  int epoch_ = 0, deaths_ = 0, starts_ = 0;
  pid_t last_pid_ = 100;
  bool paused_ = false, over_ = false;
};

TEST_CASE("10,000 random schedules of losses end with all work done, or without restarts left") {
  for (unsigned seed = 0; seed < 10'000; ++seed) {
    const int restarts = seed % 4 == 0 ? static_cast<int>(seed % 7) : 1'000'000;
    const std::string broken = Simulation(seed, restarts, false).Run();
    CAPTURE(seed);
    REQUIRE(broken == "");
  }
}

TEST_CASE("10,000 random schedules of losses, lost hosts and new hosts keep enough ranks at work") {
  for (unsigned seed = 0; seed < 10'000; ++seed) {
    const int restarts = seed % 4 == 0 ? 1 + static_cast<int>(seed % 7) : 1'000'000;
    const std::string broken = Simulation(seed, restarts, true).Run();
    CAPTURE(seed);
    REQUIRE(broken == "");
  }
}

}  // namespace
}  // namespace dtrun::launcher
