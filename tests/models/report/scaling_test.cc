#include "models/report/scaling.h"

#include <dtrun/error.h>

#include <catch2/catch.hpp>
#include <limits>
#include <string>

#include "tests/support/json.h"

namespace dtrun::models {
namespace {

using testing::ParseJson;

template <typename Function>
std::string ErrorOf(const Function& function) {
  try {
    function();
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::kInvalidArgument);
    return error.what();
  }
  return "no error";
}

TEST_CASE("the rate is the median of all epochs but the first") {
  CHECK(MedianRate({{10, 5}, {10, 1}, {10, 2}, {10, 1}}) == 10);
  CHECK(MedianRate({{10, 0.001}, {10, 2}}) == 5);
  CHECK(MedianRate({{10, 1}, {10, 1}, {10, 2}}) == 7.5);  // the mean of the two middle rates
}

TEST_CASE("an epoch counts the examples that it processed") {
  // 58 whole batches of 1,024 out of 60,000 examples.
  CHECK(MedianRate({{59392, 1}, {59392, 2}}) == 29696);
}

TEST_CASE("fewer than two epochs or an epoch without examples or time is an error") {
  CHECK(ErrorOf([] {
          MedianRate({{10, 1}});
        }) == "1 epoch; expected at least 2, since the first one warms up and does not count");
  CHECK(ErrorOf([] {
          ScalingTable({{2, {{10, 1}, {10, 0}}}});
        }) == "2 ranks: an epoch of 10 examples in 0 s; expected examples and a time");
  CHECK(ErrorOf([] {
          ScalingTable({{1, {{10, 1}, {0, 1}}}});
        }) == "1 rank: an epoch of 0 examples in 1 s; expected examples and a time");
  const double nan = std::numeric_limits<double>::quiet_NaN();
  CHECK(ErrorOf([&] { MedianRate({{10, 1}, {10, nan}}); }).find("in nan s") != std::string::npos);
}

ScalingRun RunAt(int ranks, uint64_t examples_per_s) {
  return {ranks, {{1, 1}, {examples_per_s, 1}}};
}

void CheckRow(const ScalingRow& row, int ranks, double rate, double speed_up, double efficiency) {
  CHECK(row.ranks == ranks);
  CHECK(row.examples_per_s == Approx(rate));
  CHECK(row.speed_up == Approx(speed_up));
  CHECK(row.efficiency == Approx(efficiency));
}

TEST_CASE("speed-up and efficiency are relative to one rank and sorted by ranks") {
  const std::vector<ScalingRow> rows = ScalingTable({RunAt(4, 300), RunAt(1, 100), RunAt(2, 180)});
  REQUIRE(rows.size() == 3);
  CheckRow(rows[0], 1, 100, 1, 1);
  CheckRow(rows[1], 2, 180, 1.8, 0.9);
  CheckRow(rows[2], 4, 300, 3, 0.75);
}

TEST_CASE("without a run on one rank the smallest run stands for perfect scaling") {
  const std::vector<ScalingRow> rows = ScalingTable({RunAt(2, 200), RunAt(8, 400)});
  CheckRow(rows[0], 2, 200, 2, 1);
  CheckRow(rows[1], 8, 400, 4, 0.5);
}

TEST_CASE("two runs on the same number of ranks and a run on no ranks are refused") {
  CHECK(ErrorOf([] {
          ScalingTable({RunAt(2, 1), RunAt(2, 2)});
        }) == "two runs on 2 ranks; expected one of each");
  CHECK(ErrorOf([] { ScalingTable({RunAt(0, 1)}); }) == "a run on 0 ranks; expected at least 1");
  CHECK(ScalingTable({}).empty());
}

// docs/guides/scaling.md, "Only processed examples count".
TEST_CASE("the published figure of eight GPUs shrinks to the processed examples") {
  const auto run = [](int ranks, double published, uint64_t processed) {
    const double seconds = 60000 / published;  // per epoch
    return ScalingRun{ranks, {{processed, seconds}, {processed, seconds}}};
  };
  const auto as_published = ScalingTable({run(1, 66176, 60000), run(8, 486914, 60000)});
  CHECK(as_published[1].efficiency == Approx(0.9197).margin(0.0001));

  const auto eight_corrected = ScalingTable({run(1, 66176, 60000), run(8, 486914, 3 * 16384)});
  CHECK(eight_corrected[1].examples_per_s == Approx(398880).margin(1));
  CHECK(eight_corrected[1].efficiency == Approx(0.7534).margin(0.0001));

  const auto both = ScalingTable({run(1, 66176, 58 * 1024), run(8, 486914, 3 * 16384)});
  CHECK(both[0].examples_per_s == Approx(65505).margin(1));
  CHECK(both[1].efficiency == Approx(0.7612).margin(0.0001));
}

TEST_CASE("a trainer's result may have examples or their rate") {
  const ScalingRun run = ParseScalingRun(
      R"({"ranks": 2, "test_accuracy": null, "epochs": [
           {"images_per_s": 100.4, "seconds": 2.5}, {"examples": 7, "seconds": 0.5}]})",
      "run.json");
  CHECK(run.ranks == 2);
  REQUIRE(run.epochs.size() == 2);
  CHECK(run.epochs[0].examples == 251);
  CHECK(run.epochs[0].seconds == 2.5);
  CHECK(run.epochs[1].examples == 7);
}

TEST_CASE("a result without speeds is refused with its file name") {
  const auto error = [](const char* json) {
    return ErrorOf([=] { ParseScalingRun(json, "run.json"); });
  };
  CHECK(error("") == "run.json: not JSON, or not an object; expected a trainer's");
  CHECK(error("[1]") == "run.json: not JSON, or not an object; expected a trainer's");
  CHECK(error("{}") == "run.json: \"ranks\": nothing; expected a number above 0");
  CHECK(error(R"({"ranks": 1})") == "run.json: \"epochs\": expected a list");
  CHECK(
      error(R"({"ranks": 1, "epochs": [3]})") ==
      "run.json: \"epochs\": expected a list of objects");
  CHECK(
      error(R"({"ranks": 1, "epochs": [{"seconds": null}]})") ==
      "run.json: \"seconds\": null; expected a number above 0");
  CHECK(
      error(R"({"ranks": 1, "epochs": [{"seconds": 1}]})") ==
      "run.json: \"images_per_s\": nothing; expected a number above 0");
}

TEST_CASE("the table has a bar for each row and a mark for the ideal") {
  const auto rows = ScalingTable({RunAt(1, 3281), RunAt(2, 6562), RunAt(4, 6562)});
  CHECK(
      ScalingText(rows, "image") ==
      "  ranks    images/s   speed-up   efficiency\n"
      "      1       3,281       1.00      100.0 %   ##########|\n"
      "      2       6,562       2.00      100.0 %   ####################|\n"
      "      4       6,562       2.00       50.0 %   ####################                    |\n"
      "A bar that reaches its | is ideal.\n");
}

TEST_CASE("the JSON table has all digits") {
  const auto json =
      ParseJson(ScalingJson(ScalingTable({RunAt(1, 3), RunAt(2, 5)}), {{"program", "x \"y\""}}));
  CHECK(json["program"] == "x \"y\"");
  REQUIRE(json["scaling"].size() == 2);
  CHECK(json["scaling"][1]["ranks"] == 2);
  CHECK(json["scaling"][1]["examples_per_s"] == 5.0);
  CHECK(json["scaling"][1]["efficiency"] == 5.0 / 2 / 3);
}

}  // namespace
}  // namespace dtrun::models
