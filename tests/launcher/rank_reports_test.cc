#include "launcher/job/rank_reports.h"

#include <catch2/catch.hpp>
#include <string>

#include "launcher/support/launch_error.h"

namespace dtrun::launcher {
namespace {

const HostRanks kRanks = {2, 3};

std::string RefusalOf(const Frame& frame) {
  RankReports reports;
  try {
    reports.Hear(frame, kRanks, 1);
  } catch (const LaunchError& error) {
    CHECK(error.code() == ExitCode::kInternal);
    CHECK(reports.running() == 0);
    return error.what();
  }
  return "taken";
}

TEST_CASE("a rank runs from its start report to its end report") {
  RankReports reports;
  reports.Hear({FrameType::kStarted, 2, R"({"pid": 40})"}, kRanks, 5);
  CHECK(reports.running() == 1);
  reports.Hear(
      {FrameType::kEnded, 2, R"({"end": 2, "value": 9, "in_order": false, "orphaned": false})"},
      kRanks, 7);
  CHECK(reports.running() == 0);
  const ExitRecord expected = {
      .rank = 2, .end = RankEnd::kSignaled, .value = 9, .time_ns = 7, .pid = 40, .start_ns = 5};
  CHECK(reports.records() == std::vector<ExitRecord>{expected});
}

TEST_CASE("the record of a rank that is started again is that of its new process") {
  RankReports reports;
  reports.Hear({FrameType::kStarted, 2, R"({"pid": 40})"}, kRanks, 5);
  reports.Hear(
      {FrameType::kEnded, 2, R"({"end": 2, "value": 9, "in_order": false, "orphaned": false})"},
      kRanks, 8);
  reports.Hear({FrameType::kStarted, 2, R"({"pid": 41})"}, kRanks, 9);
  REQUIRE(reports.records().size() == 1);
  CHECK(reports.records()[0] == ExitRecord{.rank = 2, .pid = 41, .start_ns = 9});
  reports.LoseHost(kRanks, 12);
  CHECK(reports.records()[0].end == RankEnd::kHostLost);
  CHECK(reports.records()[0].time_ns == 12);
  reports.LoseHost(kRanks, 13);
  CHECK(reports.records()[0].time_ns == 12);
  reports.LoseHost(kRanks, 14, /*also_ended=*/true);  // it was being started again there
  CHECK(reports.records()[0].time_ns == 14);
}

TEST_CASE("the end time of a rank is the time at which its host saw the end") {
  RankReports reports;
  const std::string rest = R"("value": 9, "in_order": false, "orphaned": false})";
  reports.Hear({FrameType::kEnded, 2, R"({"end": 2, "age_ns": 10, )" + rest}, kRanks, 1000);
  reports.Hear({FrameType::kEnded, 3, R"({"end": 2, "age_ns": 300, )" + rest}, kRanks, 1001);
  REQUIRE(reports.records().size() == 2);
  CHECK(reports.records()[0].time_ns == 990);
  CHECK(reports.records()[1].time_ns == 701);
}

TEST_CASE("a stopped rank that goes on because the job ends counts as stopped until then") {
  const auto state = [](bool stopped) {
    return Frame{
        FrameType::kState, 3,
        std::string(
            R"({"init": false, "joined": true, "epoch": 0, "timeout_s": 3, "warning_s": 1, "stopped": )") +
            (stopped ? "true}" : "false}")};
  };
  const Frame failed = {
      FrameType::kEnded, 2, R"({"end": 2, "value": 6, "in_order": false, "orphaned": false})"};
  RankReports reports;
  reports.Hear(state(true), kRanks, 5);
  reports.Hear(state(false), kRanks, 6);
  CHECK(reports.records()[0].state.stopped_ns == 0);
  reports.Hear(state(true), kRanks, 7);
  reports.Hear(failed, kRanks, 8);
  reports.Hear(state(false), kRanks, 9);
  REQUIRE(reports.records()[0].rank == 3);
  CHECK(reports.records()[0].state.stopped_ns == 7);
}

TEST_CASE("running ranks answer each notice anew") {
  RankReports reports;
  reports.Hear({FrameType::kStarted, 2, R"({"pid": 40})"}, kRanks, 5);
  reports.Hear({FrameType::kStarted, 3, R"({"pid": 41})"}, kRanks, 5);
  reports.Hear({FrameType::kNoticed, 3, R"({"takes": true})"}, kRanks, 6);
  CHECK(reports.answers({2, 3}, 10).awaited == 1);
  CHECK(reports.answers({2, 3}, 10).takers == 1);
  reports.ForgetAnswers();
  CHECK(reports.answers({2, 3}, 10).awaited == 2);
}

TEST_CASE("a rank that has not been heard of is starting") {
  RankReports reports;
  CHECK(reports.answers({2, 3}, 10).starting == 2);
  reports.Hear({FrameType::kStarted, 3, R"({"pid": 41})"}, kRanks, 5);
  reports.Hear({FrameType::kNoticed, 3, R"({"takes": true})"}, kRanks, 6);
  CHECK(reports.answers({2, 3}, 10).starting == 1);
  CHECK(reports.answers({3}, 10).starting == 0);
}

TEST_CASE("an agent may report only on the ranks of its own host") {
  const std::string ended = R"({"end": 2, "value": 9, "in_order": false, "orphaned": false})";
  const std::string refusal = "invalid message from an agent: found rank ";
  CHECK(RefusalOf({FrameType::kEnded, 3, ended}) == "taken");
  CHECK(
      RefusalOf({FrameType::kEnded, 4, ended}) ==
      refusal + "4; expected one of the host's ranks: ranks 2 and 3");
  for (const FrameType type : {FrameType::kStarted, FrameType::kEnded, FrameType::kNoticed})
    for (const int rank : {-1, 0, 4, INT32_MAX, INT32_MIN})
      CHECK_THAT(RefusalOf({type, rank, ended}), Catch::StartsWith(refusal));
}

TEST_CASE("an invalid message from an agent is refused") {
  CHECK(
      RefusalOf(
          {FrameType::kEnded, 2,
           R"({"end": 2, "value": 2147483647, "in_order": false, "orphaned": false})"}) ==
      "invalid message from an agent: value is 2147483647");
  for (const char* body :
       {"", "{", "[]", "{}", R"({"end": 4, "value": 0, "in_order": true, "orphaned": false})",
        R"({"end": 1, "value": -1, "in_order": true, "orphaned": false})",
        R"({"end": 1, "value": 0, "in_order": 1, "orphaned": false})",
        R"({"end": "1", "value": 0})"}) {
    CAPTURE(body);
    CHECK(RefusalOf({FrameType::kEnded, 2, body}) != "taken");
  }
  for (const char* body : {"{}", R"({"pid": 0})", R"({"pid": 4294967297})"}) {
    CAPTURE(body);
    CHECK(RefusalOf({FrameType::kStarted, 2, body}) != "taken");
  }
}

TEST_CASE("step times with parts longer than the total are refused") {
  for (const char* parts :
       {R"("total_ns": 1, "exposed_ns": 2, "late_ns": 0)",
        R"("total_ns": 3, "exposed_ns": 2, "late_ns": 3)",
        R"("total_ns": -1, "exposed_ns": -1, "late_ns": -1)"}) {
    CAPTURE(parts);
    CHECK(
        RefusalOf(
            {FrameType::kProgress, -1,
             R"([{"rank": 3, "step": 1, "examples": 0, "waited_ns": 0, "reduced": {"steps": 1, )"
             R"("bytes": 0, "buckets": 0, )" +
                 std::string(parts) + "}}]"}) != "taken");
  }
}

TEST_CASE("progress of ranks on other hosts and unreadable flight records are left out") {
  RankReports reports;
  const std::string rest = R"(, "step": 1, "examples": 2, "waited_ns": 3, "reduced": {)"
                           R"("steps": 1, "total_ns": 9, "exposed_ns": 8, "late_ns": 7, )"
                           R"("bytes": 6, "buckets": 5}})";
  reports.Hear(
      {FrameType::kProgress, -1, R"([{"rank": 3)" + rest + R"(, {"rank": 4)" + rest + "]"}, kRanks,
      1);
  CHECK(
      reports.TakeProgress() == std::vector<base::FlightProgress>{
                                    {.rank = 3,
                                     .step = 1,
                                     .examples = 2,
                                     .waited_ns = 3,
                                     .reduced = {
                                         .steps = 1,
                                         .total_ns = 9,
                                         .exposed_ns = 8,
                                         .late_ns = 7,
                                         .bytes = 6,
                                         .buckets = 5}}});
  CHECK(reports.TakeProgress().empty());
  CHECK(reports.progress().size() == 1);
  reports.Hear({FrameType::kFlight, 3, "no record"}, kRanks, 1);
  CHECK(reports.flights().empty());
}

}  // namespace
}  // namespace dtrun::launcher
