// Layers that exchange data between ranks, and the synthetic benchmark. Each test starts real
// processes.

#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "tests/models/idx_files.h"
#include "tests/support/json.h"
#include "tests/support/subprocess.h"
#include "tests/support/text.h"

namespace dtrun::testing {
namespace {

using Words = std::vector<std::string>;

CommandResult RunRanks(int np, const Words& program) {
  Words argv = {"launcher/dtrun", "--tag", "none", "-np", std::to_string(np)};
  argv.insert(argv.end(), program.begin(), program.end());
  return Run({.argv = argv});
}

std::vector<float> FloatsOf(int np, const TemporaryFolder& folder) {
  const std::string file = folder / "floats";
  const CommandResult result = RunRanks(np, {"tests/models/programs/sync_batch_norm", file});
  INFO(result.err);
  REQUIRE(result.exit_code == 0);
  const std::string bytes = ReadText(file);
  std::vector<float> floats(bytes.size() / sizeof(float));
  std::memcpy(floats.data(), bytes.data(), bytes.size());
  return floats;
}

TEST_CASE("ranks with synchronized batch normalization match one rank even with an idle rank") {
  TemporaryFolder folder;
  const std::vector<float> expected = FloatsOf(1, folder);
  REQUIRE(expected.size() > 1000);
  for (int np : {2, 3}) {
    const std::vector<float> floats = FloatsOf(np, folder);
    REQUIRE(floats.size() == expected.size());
    double difference = 0, norm = 0;
    for (size_t i = 0; i < expected.size(); ++i) {
      difference += std::pow(double(floats[i]) - double(expected[i]), 2);
      norm += double(expected[i]) * double(expected[i]);
    }
    CHECK(std::sqrt(difference / norm) < 1e-5);
  }
}

Words Benchmark(const Words& options) {
  Words argv = {"models/synthetic_benchmark",
                "--threads",
                "1",
                "--num-warmup-batches",
                "1",
                "--num-iters",
                "2",
                "--num-batches-per-iter",
                "1"};
  argv.insert(argv.end(), options.begin(), options.end());
  return argv;
}

TEST_CASE("the synthetic benchmark prints images per second per rank and of all ranks") {
  TemporaryFolder folder;
  const std::string file = folder / "result.json";
  const CommandResult result = RunRanks(
      2, Benchmark(
             {"--model", "resnet50", "--image-size", "32", "--batch-size", "2", "--json", file,
              "--sync-batch-norm"}));
  INFO(result.err);
  REQUIRE(result.exit_code == 0);
  for (const char* part :
       {"Model: resnet50, 25557032 parameters\n", "Batch size: 2 per rank\n",
        "Number of ranks: 2, threads per rank: 1, reduction: shm\n", "Running warmup...\n",
        "Iter #1: ", "Img/sec per rank: ", "Total img/sec on 2 ranks: ", " +-"})
    CHECK(result.out.find(part) != std::string::npos);
  const nlohmann::json told = ReadJson(file);
  CHECK(told["ranks"] == 2);
  CHECK(told["iterations"].size() == 2);
  CHECK(told["images_per_s"].get<double>() > 0);
}

TEST_CASE("the synthetic benchmark trains every network on one rank with a ragged last chunk") {
  for (const char* model : {"A", "B", "C", "D", "mlp"}) {
    const CommandResult result =
        Run({.argv = Benchmark({"--model", model, "--batch-size", "150"})});
    INFO(model << ": " << result.err);
    CHECK(result.exit_code == 0);
    CHECK(result.out.find("Total img/sec on 1 rank: ") != std::string::npos);
  }
}

TEST_CASE(
    "an unsupported option of the synthetic benchmark is a one-line error and exit code 2 for all "
    "ranks") {
  const auto expect = [](const Words& options, const std::string& line) {
    const CommandResult result = RunRanks(2, Benchmark(options));
    CHECK(result.exit_code == 2);
    CHECK(result.err == "synthetic_benchmark: " + line + "\n");
  };
  expect(
      {"--model", "vgg"},
      "--model: 'vgg' is not known, expected one of A, B, C, D, mlp, resnet18, resnet50 (see "
      "--help)");
  expect(
      {"--model", "A", "--image-size", "8"},
      "--image-size 8: layer 3 (max_pool2d 2x2) needs an input of at least 2x2, got 64");
  expect(
      {"--model", "A", "--sync-batch-norm"},
      "network A: has no batch normalisation that could be synchronised");
}

}  // namespace
}  // namespace dtrun::testing
