// Benchmarks as ranks of dtrun, beside other tests.

#include <signal.h>

#include <catch2/catch.hpp>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "tests/conformance/suite.h"
#include "tests/support/json.h"
#include "tests/support/subprocess.h"

namespace dtrun::testing {
namespace {

using Catch::Matchers::Contains;
using Words = std::vector<std::string>;

CommandResult UnderDtrun(const std::string& ranks, const Words& program) {
  Words argv = {"launcher/dtrun", "--tag", "none", "-np", ranks};
  argv.insert(argv.end(), program.begin(), program.end());
  return Run({.argv = argv, .timeout = std::chrono::minutes(2)});
}

// The rows that a program measured.
nlohmann::json Rows(const std::string& ranks, Words program) {
  TemporaryFolder folder;
  const std::string file = folder.path() + "/rows.json";
  program.insert(program.end(), {"--rounds", "1", "--beside-others", "--json", file});
  const CommandResult result = UnderDtrun(ranks, program);
  CAPTURE(result.out, result.err);
  REQUIRE(result.exit_code == 0);
  return ReadJson(file);
}

TEST_CASE("gradient_perf reduces gradients correctly in every mode") {
  const Words models = RunsInFull() ? Words{"thousand", "resnet50"} : Words{"thousand"};
  const std::string model = GENERATE_COPY(from_range(models));
  const std::string ranks = model == "resnet50" ? "3" : "2";
  const CommandResult result = UnderDtrun(
      ranks, {"bench/gradient_perf", "--case", model, "--rounds", "1", "--beside-others"});
  CAPTURE(result.out, result.err);
  CHECK_THAT(
      result.out, Contains("mapped") && Contains("scattered") && Contains("local_step") &&
                      Contains("sharded_step") && Contains("sharded_step_one_copy"));
  // The last column counts wrong results.
  std::istringstream lines(result.out);
  int rows = 0;
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind(model, 0) != 0) continue;
    CHECK(line.substr(line.rfind(' ') + 1) == "0");
    ++rows;
  }
  CHECK(rows >= 5);
  CHECK(result.exit_code == 0);
}

TEST_CASE("the JSON rows of a benchmark contain its settings and results") {
  for (const auto& row :
       Rows("2", {"bench/gradient_perf", "--case", "thousand", "--mode", "mapped"})) {
    CHECK(row.at("case") == "thousand");
    CHECK(row.at("mode") == "mapped");
    CHECK(row.at("ranks") == 2);
    CHECK(row.at("tensors") == 1000);
    CHECK(row.at("bytes") == 1'024'000);
    CHECK(row.at("wrong") == 0);
    for (const char* figure : {"time_us", "memcpy_us", "mpi_fused_us"}) CHECK(row.at(figure) > 0);
    CHECK(
        row.at("ratio") == row.at("mpi_fused_us").get<double>() / row.at("time_us").get<double>());
  }
  for (const auto& row :
       Rows("2", {"bench/gradient_perf", "--case", "thousand", "--mode", "sharded_step"})) {
    CHECK(row.at("mode") == "sharded_step");
    CHECK(row.at("wrong") == 0);
    CHECK(
        row.at("ratio_to_local_step") ==
        row.at("time_us").get<double>() / row.at("local_step_us").get<double>());
  }
  for (const auto& row : Rows("2", {"bench/all_reduce_perf", "--bytes", "4096"})) {
    CHECK(row.at("bytes") == 4096);
    CHECK(row.at("wrong") == 0);
  }
}

TEST_CASE("overlap_perf reports the exposed share of a correct reduction") {
  const Words program = {"bench/overlap_perf", "--gradients", "7", "--compute-ms", "2"};
  for (const Words& size : {Words{"--bytes", "2800"}, Words{"--reduction-ms", "0.2"}}) {
    Words sized = program;
    sized.insert(sized.end(), size.begin(), size.end());
    for (const auto& row : Rows("3", sized)) {
      CHECK(row.at("gradients") == 7);
      CHECK(row.at("ranks") == 3);
      CHECK(row.at("bytes").get<int>() % (7 * 4) == 0);
      if (size[0] == "--bytes") CHECK(row.at("bytes") == 2800);
      CHECK(row.at("compute_us") >= 2000);
      CHECK(row.at("reduction_us") > 0);
      CHECK(
          row.at("exposed_share") ==
          row.at("exposed_us").get<double>() / row.at("exposed_after_us").get<double>());
      CHECK(row.at("wrong") == 0);
    }
  }
}

TEST_CASE("named_perf reduces tensors by name and writes one JSON object") {
  const std::string ranks = GENERATE("2", "3");
  const auto row = Rows(ranks, {"bench/named_perf"});
  CHECK(row.at("ranks") == std::stoi(ranks));
  for (const char* name :
       {"latency_us_p50", "latency_us_p99", "communicator_us_p50", "mpi_us_p50",
        "idle_latency_us_p50", "sleeper_latency_us_p50", "thousand_tensors_us"})
    CHECK(row.at(name) > 0);
  CHECK(row.at("latency_us_p99") >= row.at("latency_us_p50"));
  for (const char* name : {"adasum_thousand_ratio", "adasum_64mib_ratio"})
    CHECK((row.at(name) > 0) == (ranks == "2"));  // adasum needs a power of two
  CHECK(row.at("wrong") == 0);
}

TEST_CASE("elastic_perf reports what copies of a sharded optimizer cost a step") {
  const CommandResult result = UnderDtrun(
      "2", {"bench/elastic_perf", "--parameters", "3000", "--compute-ms", "1", "--rounds", "1",
            "--every", "2"});
  CAPTURE(result.err);
  CHECK(result.exit_code == 0);
  CHECK(result.out.find("copies after every 2. step\nstep without copies ") != std::string::npos);
}

TEST_CASE("input_perf compares steps with an input pipeline and steps with inputs in memory") {
  const auto rows = Rows("2", {"bench/input_perf", "--batch", "32"});
  for (const auto& row : rows) {
    CHECK(row.at("ranks") == 2);
    CHECK(row.at("batch") == 32);
    CHECK(row.at("wait_us") >= 0);
    CHECK(row.at("ratio") == row.at("step_us").get<double>() / row.at("memory_us").get<double>());
  }
}

TEST_CASE("model_perf reports the share of the floor that a training step reaches") {
  TemporaryFolder folder;
  const std::string file = folder.path() + "/rows.json";
  const CommandResult result = Run(
      {.argv =
           {"bench/model_perf", "--batch", "2", "--rounds", "1", "--beside-others", "--json", file},
       .timeout = std::chrono::minutes(2)});
  CAPTURE(result.out, result.err);
  CHECK_THAT(result.out, Contains("conv2d 64 3x3 relu, backward weights"));
  REQUIRE(result.exit_code == 0);
  const auto rows = ReadJson(file);
  REQUIRE(rows.size() == 2);
  CHECK(rows[0].at("dtype") == "f32");
  CHECK(rows[1].at("dtype") == "bf16");
  for (const auto& row : rows) {
    CHECK(row.at("model") == "C");
    CHECK(row.at("threads") == 1);
    CHECK(row.at("batch") == 2);
    CHECK(row.at("deterministic_images_per_s") > 0);
    CHECK(
        row.at("share").get<double>() ==
        Approx(row.at("images_per_s").get<double>() / row.at("floor_images_per_s").get<double>()));
  }
}

TEST_CASE("a benchmark that cannot measure exits with code 2 and the reason") {
  const CommandResult alone = Run({{"bench/gradient_perf"}});
  CHECK(alone.exit_code == 2);
  CHECK(
      alone.err == "gradient_perf: start it with dtrun -np 2 or more: it measures between ranks\n");
  const CommandResult together = UnderDtrun("2", {"bench/model_perf"});
  CHECK(together.exit_code == 2);
  CHECK(together.err.find("model_perf: start it alone: it measures one process\n") == 0);
  const CommandResult unknown = Run({{"bench/gradient_perf", "--case", "vgg"}});
  CHECK(unknown.exit_code == 2);
  CHECK_THAT(unknown.err, Contains("--case") && Contains("vgg"));
  const CommandResult file = UnderDtrun(
      "2", {"bench/gradient_perf", "--case", "thousand", "--mode", "mapped", "--rounds", "1",
            "--beside-others", "--json", "/no/such/folder/rows"});
  CHECK(file.exit_code == 73);
}

TEST_CASE("a run beside other programs does not count") {
  Subprocess busy({.argv = {"sh", "-c", "while :; do :; done"}});
  Subprocess as_busy({.argv = {"sh", "-c", "while :; do :; done"}});
  TemporaryFolder folder;
  const std::string file = folder.path() + "/rows.json";
  const CommandResult result = UnderDtrun(
      "2", {"bench/gradient_perf", "--case", "thousand", "--mode", "mapped", "--rounds", "1",
            "--json", file});
  busy.Signal(SIGKILL);
  as_busy.Signal(SIGKILL);
  busy.Wait();
  as_busy.Wait();
  CAPTURE(result.out, result.err);
  CHECK(result.exit_code == 1);
  CHECK_THAT(
      result.out,
      Contains("INVALID: other processes used more than 5 % of the CPU in three runs\n"));
  CHECK_FALSE(std::ifstream(file));
}

}  // namespace
}  // namespace dtrun::testing
