#include "launcher/report/failure_report.h"

#include <signal.h>
#include <stdlib.h>
#include <time.h>

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "dtrun/types.h"
#include "tests/support/json.h"

namespace dtrun::launcher {
namespace {

using nlohmann::json;
using testing::ParseJson;
using Lines = std::vector<std::string>;

constexpr int64_t kSecond = 1'000'000'000;

base::FlightOperation Barrier(uint64_t sequence, base::FlightState state) {
  base::FlightOperation operation;
  operation.communicator = "world";
  operation.sequence = sequence;
  operation.call.kind = static_cast<uint8_t>(base::CollectiveKind::kBarrier);
  operation.state = state;
  return operation;
}

base::FlightRecord Flight(int rank, uint64_t sequence, base::FlightState state) {
  base::FlightRecord record;
  record.rank = rank;
  record.operations = {Barrier(sequence, state)};
  return record;
}

ExitRecord Ended(int rank, RankEnd end, int value, double at_s) {
  return {
      .rank = rank,
      .end = end,
      .value = value,
      .time_ns = 100 * kSecond + static_cast<int64_t>(at_s * 1e9),
      .pid = 40 + rank,
      .start_ns = 100 * kSecond + kSecond / 2};
}

// A job of four ranks on two hosts. Rank 2 is killed after 62.345 s.
JobStory KilledStory() {
  setenv("TZ", "UTC", 1);
  tzset();
  JobStory story = {
      .command = {"./train", "--lr", "1"},
      .hosts = {{"h1", 1}, {"h2", 3}},
      .started = std::chrono::system_clock::from_time_t(1'795'257'600),
      .started_ns = 100 * kSecond,
      .ended_ns = 163 * kSecond};
  story.verdict = {137, "rank 2 on h2 was killed by SIGKILL", 2, true};
  story.records = {
      Ended(2, RankEnd::kSignaled, SIGKILL, 62.345), Ended(0, RankEnd::kSignaled, SIGTERM, 62.4),
      Ended(1, RankEnd::kExited, 1, 62.4), Ended(3, RankEnd::kRunning, 0, 62.4)};
  return story;
}

TEST_CASE("the report lists the culprit and then the victims and the ranks that failed later") {
  CHECK(
      FailureLines(KilledStory(), false) ==
      Lines{
          "rank 2 on h2 was killed by SIGKILL",
          "  pid 42, local rank 1, at 10:41:02.345, 62.345 s after the start",
          "  ranks 0 and 3 were ended because of it", "  rank 1 failed after it"});
}

TEST_CASE("the culprit's last lines are repeated if they are no longer visible") {
  JobStory story = KilledStory();
  story.last_lines = "one\ntwo";
  CHECK(FailureLines(story, false).front() == story.verdict.message);
  const Lines lines = FailureLines(story, true);
  CHECK(
      Lines(lines.begin(), lines.begin() + 4) ==
      Lines{"rank 2 wrote last to stderr:", "  one", "  two", story.verdict.message});
}

TEST_CASE("lagging ranks are listed once beside the activity of the others and hints come last") {
  JobStory story = KilledStory();
  story.flights = {
      Flight(0, 9, base::FlightState::kStarted), Flight(2, 8, base::FlightState::kDone),
      Flight(3, 9, base::FlightState::kDone)};
  story.records[0].facts = {.oom_kills = 1, .memory_cgroup = "/m"};
  const Lines lines = FailureLines(story, false);
  REQUIRE(lines.size() == 7);
  CHECK(
      lines[4] ==
      "rank 2 is 1 collective behind on world: it last finished #8, barrier; rank 0 waits in #9, "
      "barrier");
  CHECK(lines[5] == "rank 3 last finished collective #9, barrier");
  CHECK_THAT(lines[6], Catch::StartsWith("hint: the kernel killed the rank"));
}

TEST_CASE("a rank that others gave up on is the culprit if it is the only one") {
  JobStory story = KilledStory();
  story.records = {
      Ended(0, RankEnd::kExited, 0, 3), Ended(1, RankEnd::kExited, 0, 3),
      Ended(2, RankEnd::kSignaled, SIGTERM, 3.1), Ended(3, RankEnd::kSignaled, SIGTERM, 3.1)};
  story.records[0].gave_up = story.records[1].gave_up = "gave up after 2 s";
  story.flights = {
      Flight(0, 9, base::FlightState::kStarted), Flight(2, 8, base::FlightState::kDone),
      Flight(3, 9, base::FlightState::kStarted)};
  story.verdict = {76, "rank 0 on h1: gave up after 2 s", 0};
  const auto found = [&] { return CulpritOf(story.verdict, story.records, story.flights); };
  CHECK(found() == 2);
  story.verdict.culprit = 2;
  const Lines lines = FailureLines(story, false);
  CHECK(
      Lines(lines.begin(), lines.begin() + 4) ==
      Lines{
          "rank 0 on h1: gave up after 2 s", "  rank 2: pid 42, local rank 1",
          "  rank 3 was ended because of it", "  ranks 0 and 1 gave up waiting for it"});

  story.verdict.culprit = 0;
  story.flights.push_back(Flight(1, 8, base::FlightState::kDone));
  CHECK(found() == 0);
}

TEST_CASE("the last line tells in which share of a job all ranks worked") {
  JobStory story;
  CHECK(LossLine(story, kSecond) == "");
  story.started_ns = 10 * kSecond;
  story.losses = {
      {.why = "x", .ranks = {1}, .lost_ns = 20 * kSecond, .recovered_ns = 21 * kSecond}};
  CHECK(
      LossLine(story, 110 * kSecond) ==
      "the job lost ranks once; all ranks worked in 99.0 % of its 100.0 s");
  story.losses.push_back({.why = "y", .ranks = {0}, .lost_ns = 106 * kSecond});
  CHECK(
      LossLine(story, 110 * kSecond) ==
      "the job lost ranks 2 times; all ranks worked in 95.0 % of its 100.0 s");
  story.losses.push_back(
      {.why = "z", .joined = {4}, .lost_ns = 30 * kSecond, .recovered_ns = 31 * kSecond});
  CHECK(
      LossLine(story, 110 * kSecond) ==
      "the job lost ranks 2 times and gained ranks once; all ranks worked in 94.0 % of its 100.0 "
      "s");
}

TEST_CASE("the report of a job with many ranks is as short as that of a small job") {
  JobStory story = KilledStory();
  story.hosts = {{"h", 64}};
  story.verdict.culprit = 5;
  story.records.clear();
  for (int rank = 0; rank < 64; ++rank)
    story.records.push_back(Ended(rank, RankEnd::kSignaled, rank == 5 ? SIGSEGV : SIGTERM, 2));
  const Lines lines = FailureLines(story, false);
  REQUIRE(lines.size() == 3);
  CHECK(lines[2] == "  ranks 0-4 and 6-63 were ended because of it");
}

TEST_CASE("without a message the report is empty") {
  JobStory story = KilledStory();
  story.verdict.message = "";
  CHECK(FailureLines(story, true).empty());
}

TEST_CASE("the JSON report holds the same facts as the text") {
  JobStory story = KilledStory();
  story.last_lines = "one\n\xff";
  story.flights = {Flight(2, 8, base::FlightState::kDone)};
  const json report = ParseJson(ReportJson(story));
  CHECK(report["exit_code"] == 137);
  CHECK(report["whose"] == "rank");
  CHECK(report["reason"] == story.verdict.message);
  CHECK(report["command"] == json(story.command));
  CHECK(report["np"] == 4);
  CHECK(report["hosts"][1] == json{{"name", "h2"}, {"slots", 3}});
  CHECK(report["started"] == "2026-11-21T10:40:00.000Z");
  CHECK(report["seconds"] == 63.0);
  CHECK(
      report["culprit"] == json{
                               {"rank", 2},
                               {"host", "h2"},
                               {"local_rank", 1},
                               {"pid", 42},
                               {"exit_code", nullptr},
                               {"signal", 9},
                               {"signal_name", "SIGKILL"},
                               {"time", "2026-11-21T10:41:02.345Z"},
                               {"last_lines", {"one", "\xef\xbf\xbd"}},
                               {"activity", "last finished collective #8, barrier"}});
  REQUIRE(report["ranks"].size() == 4);
  CHECK(report["ranks"][0]["role"] == "victim");
  CHECK(report["ranks"][1]["role"] == "failed");
  CHECK(report["ranks"][1]["exit_code"] == 1);
  CHECK(report["ranks"][2]["role"] == "culprit");
  CHECK(report["ranks"][3]["role"] == "victim");
  CHECK(report["ranks"][3]["started"] == "2026-11-21T10:40:00.500Z");
}

TEST_CASE("ranks that never started have no process in the JSON report") {
  JobStory story = KilledStory();
  story.records.clear();
  story.verdict = {127, "./train: not found"};
  const json report = ParseJson(ReportJson(story));
  CHECK(report["whose"] == "dtrun");
  CHECK(report["culprit"] == nullptr);
  CHECK(report["hints"] == json::array());
  CHECK(report["behind"] == json::array());
  CHECK(report["ranks"][0]["role"] == "not started");
  CHECK(report["ranks"][0]["pid"] == nullptr);
  CHECK(report["ranks"][0]["started"] == nullptr);
}

}  // namespace
}  // namespace dtrun::launcher
