// The GPU benchmark with few runs, on a real or on the simulated GPU.

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "tests/support/json.h"
#include "tests/support/subprocess.h"

namespace {

using dtrun::testing::Command;
using dtrun::testing::CommandResult;
using dtrun::testing::ParseJson;
using dtrun::testing::Run;

TEST_CASE("gpu_all_reduce_perf reports the times of an all-reduce and of a copy") {
  const std::string ranks = GENERATE("1", "2");
  const CommandResult result = Run(Command{
      .argv =
          {"bench/gpu_all_reduce_perf", "--ranks", ranks, "--runs", "2", "--count", "3",
           "--small-bytes", "4096", "--large-bytes", "1048576"},
      .timeout = std::chrono::seconds(60)});
  CHECK(result.err == "");
  REQUIRE(result.exit_code == 0);
  const auto json = ParseJson(result.out);
  CHECK(json["backend"] == "cuda_ipc");
  CHECK(json["ranks"] == std::stoi(ranks));
  CHECK(json["small"]["bytes"] == 4096);
  CHECK(json["small"]["microseconds"] > 0);
  CHECK(json["enqueue"]["microseconds"] > 0);
  const auto& large = json["large"];
  const double bytes = 2.0 * std::stoi(ranks) * 1048576;
  CHECK(
      large["bytes_per_second"].get<double>() ==
      Approx(bytes / (large["microseconds"].get<double>() * 1e-6)));
  CHECK(
      large["share"].get<double>() ==
      Approx(
          large["bytes_per_second"].get<double>() / large["copy_bytes_per_second"].get<double>()));
}

// The JSON output of gpu_all_reduce_perf with the options `words`.
nlohmann::json Measured(const std::vector<std::string>& words) {
  Command command{
      .argv =
          {"bench/gpu_all_reduce_perf", "--runs", "2", "--count", "3", "--large-bytes", "4194304"},
      .timeout = std::chrono::seconds(60)};
  command.argv.insert(command.argv.end(), words.begin(), words.end());
  const CommandResult result = Run(command);
  CHECK(result.err == "");
  REQUIRE(result.exit_code == 0);
  return ParseJson(result.out);
}

TEST_CASE("gpu_all_reduce_perf measures other backends") {
  const auto staged = Measured({"--backend", "host_staged"});
  CHECK(staged["backend"] == "host_staged");
  CHECK(staged["small"]["count"] == 3);
  CHECK(staged["large"]["share"] > 0);
  const auto hierarchical = Measured({"--backend", "hierarchical", "--ranks", "4", "--hosts", "2"});
  CHECK(hierarchical["backend"] == "hierarchical");
  CHECK(hierarchical["hosts"] == 2);
  CHECK(hierarchical["large"]["share"] > 0);
}

TEST_CASE("gpu_all_reduce_perf measures all-reduces between processes") {
  const auto json = Measured({"--processes"});
  CHECK(json["backend"] == "cuda_ipc");
  CHECK(json["large"]["bytes"] == 4194304);
  CHECK(json["large"]["share"] > 0);
}

TEST_CASE("gpu_all_reduce_perf refuses a GPU that does not exist") {
  const CommandResult result = Run(Command{
      .argv = {"bench/gpu_all_reduce_perf", "--ranks", "1", "--device", "99"},
      .timeout = std::chrono::seconds(60)});
  CHECK(result.out == "");
  CHECK_THAT(result.err, Catch::StartsWith("gpu_all_reduce_perf: there is no GPU 99; expected"));
  CHECK(result.exit_code == 1);
}

}  // namespace
