// cnn_fmnist --strategy parameter_server under dtrun --ps, on a small learnable data set and once
// on Fashion-MNIST. Each test starts real processes.

#include <signal.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <string>
#include <vector>

#include "tests/models/idx_files.h"
#include "tests/support/json.h"
#include "tests/support/subprocess.h"
#include "tests/support/text.h"

namespace dtrun::testing {
namespace {

using Catch::Contains;
using nlohmann::json;
using Words = std::vector<std::string>;

constexpr char kFashionMnist[] = "/usr/share/datasets/fashion-mnist";

// `strategy` "": the default.
Command Job(
    const Words& launch, const Words& options, const std::string& strategy = "parameter_server") {
  Words argv = {"launcher/dtrun", "--tag", "none", "--launcher", "local", "--threads", "1"};
  argv.insert(argv.end(), launch.begin(), launch.end());
  argv.push_back("models/cnn_fmnist");
  if (!strategy.empty()) argv.insert(argv.end(), {"--strategy", strategy});
  argv.insert(argv.end(), options.begin(), options.end());
  return {.argv = argv};
}

// A data set of 400 images, and jobs on it.
struct PsTraining {
  PsTraining() { WriteToySet(folder, 400); }
  Words Options(const Words& more) const {
    Words options = {"--data-dir",   folder.path(), "--network", "mlp",
                     "--batch-size", "20",          "--json",    folder.path() + "/result.json"};
    options.insert(options.end(), more.begin(), more.end());
    return options;
  }
  json Result() const { return ReadJson(folder.path() + "/result.json"); }

  TemporaryFolder folder;
};

TEST_CASE("workers learn together and report staleness") {
  const PsTraining trained;
  const std::string servers = GENERATE("1", "2");
  const CommandResult result = Run(Job(
      {"-np", servers == "1" ? "3" : "4", "--ps", servers}, trained.Options({"--epochs", "10"})));
  CAPTURE(servers, result.out, result.err);
  REQUIRE(result.exit_code == 0);
  const json told = trained.Result();
  CHECK(told["workers"] == 2);
  CHECK(told["updates"] == 200);
  CHECK(told["test_accuracy"].get<double>() > 0.9);
  const auto staleness = told["staleness"].get<std::vector<uint64_t>>();
  CHECK(std::accumulate(staleness.begin(), staleness.end(), uint64_t{0}) == 200);
  CHECK_THAT(result.out, Contains("staleness 0: ") && Contains("test accuracy "));
}

TEST_CASE("a staleness bound of 0 makes workers take turns") {
  const PsTraining trained;
  const CommandResult result = Run(
      Job({"-np", "3", "--ps", "1"}, trained.Options({"--epochs", "2", "--max-staleness", "0"})));
  REQUIRE(result.exit_code == 0);
  CHECK(trained.Result()["staleness"] == json({40}));
}

TEST_CASE("training resumes from a checkpoint that an evaluator has scored") {
  const PsTraining trained;
  const Words saving = {"--checkpoint-dir",   trained.folder.path() + "/ckpt",
                        "--checkpoint-every", "25",
                        "--epochs",           "5"};
  Words evaluating = saving;
  evaluating.push_back("--evaluator");
  const CommandResult first = Run(Job({"-np", "4", "--ps", "1"}, trained.Options(evaluating)));
  CAPTURE(first.out, first.err);
  REQUIRE(first.exit_code == 0);
  CHECK_THAT(first.out, Contains("ckpt_100: test accuracy "));
  Words more = saving;
  more.back() = "10";
  more.push_back("--resume");
  const CommandResult second = Run(Job({"-np", "4", "--ps", "2"}, trained.Options(more)));
  CAPTURE(second.out, second.err);
  REQUIRE(second.exit_code == 0);
  CHECK(trained.Result()["updates"] == 100);
  CHECK(trained.Result()["test_accuracy"].get<double>() > 0.9);
}

// The kernel kills rank 2 after a second of CPU time, before it has done its share of the steps. A
// bound of staleness gives each worker its share, however busy the machine is.
constexpr char kKilled[] = "if [ $RANK = 2 ]; then ulimit -t 1; fi; exec \"$@\"";

TEST_CASE("a job with servers and a killed worker reaches the accuracy of a single rank") {
  if (!std::filesystem::exists(kFashionMnist)) {
    std::printf("SKIPPED: there is no folder %s\n", kFashionMnist);
    return;
  }
  const TemporaryFolder folder;
  const std::string file = folder.path() + "/result.json";
  // Both runs make the same number of updates of 64 images at the same rates.
  const Words options = {"--network", "A", "--batch-size", "64", "--epochs", "1",
                         "--verbose", "0", "--json",       file};
  Words alone = {"models/cnn_fmnist", "--threads", "1"};
  alone.insert(alone.end(), options.begin(), options.end());
  REQUIRE(Run(Command{.argv = alone}).exit_code == 0);
  const double synchronous = ReadJson(file)["test_accuracy"];

  Words killed = {
      "launcher/dtrun",
      "--tag",
      "none",
      "--launcher",
      "local",
      "--threads",
      "1",
      "-np",
      "3",
      "--ps",
      "1",
      "sh",
      "-c",
      kKilled,
      "sh",
      "models/cnn_fmnist",
      "--strategy",
      "parameter_server"};
  killed.insert(killed.end(), options.begin(), options.end());
  killed.insert(killed.end(), {"--max-staleness", "1"});
  const CommandResult result = Run(Command{.argv = killed});
  CAPTURE(result.out, result.err);
  REQUIRE(result.exit_code == 0);
  const json told = ReadJson(file);
  CHECK(told["lost_workers"] == 1);
  CHECK(told["steps"] == 938);
  const double asynchronous = told["test_accuracy"];
  CAPTURE(synchronous, asynchronous);
  CHECK(synchronous > 0.85);
  CHECK(std::abs(asynchronous - synchronous) < 0.01);
}

TEST_CASE("an optimizer that needs whole variables gets them whole on any number of servers") {
  const PsTraining trained;
  const std::string optimizer = GENERATE("lamb", "muon");
  // On 12x12 images, the largest variable of network C has 512 KiB. It would be cut otherwise.
  Words options = {"--data-dir",   trained.folder.path(),
                   "--network",    "C",
                   "--batch-size", "20",
                   "--json",       trained.folder.path() + "/result.json",
                   "--epochs",     "1",
                   "--optimizer",  optimizer};
  const CommandResult result = Run(Job({"-np", "4", "--ps", "2"}, options));
  CAPTURE(optimizer, result.out, result.err);
  REQUIRE(result.exit_code == 0);
  CHECK(trained.Result()["updates"] == 20);
}

TEST_CASE("the model that the first server saves says how it was made") {
  const PsTraining trained;
  const std::string model = trained.folder.path() + "/model";
  const CommandResult result =
      Run(Job({"-np", "3", "--ps", "1"}, trained.Options({"--epochs", "10", "--save", model})));
  CAPTURE(result.out, result.err);
  REQUIRE(result.exit_code == 0);
  CHECK_THAT(result.out, Contains("staleness 0: "));
  CHECK(trained.Result()["updates"] == 200);
  CHECK(trained.Result()["test_accuracy"].get<double>() > 0.9);
  const auto metadata = ReadJson(model + "/model.json")["metadata"];
  CHECK(metadata["program"] == "cnn_fmnist");
  CHECK(metadata["strategy"] == "parameter_server");
  CHECK(metadata["workers"] == "2");
  CHECK(metadata["steps"] == "200");
  CHECK_THAT(
      metadata["command"].get<std::string>(),
      Contains("--strategy parameter_server ") && Contains(" --save " + model));
  CHECK(
      std::stod(metadata["test_accuracy"].get<std::string>()) ==
      trained.Result()["test_accuracy"].get<double>());
}

TEST_CASE("a strategy that does not fit the kind of job is one line and exit code 2") {
  const PsTraining trained;
  const auto refusal = [&](const Words& launch, const Words& more) {
    const CommandResult result = Run(Job(launch, trained.Options(more), ""));
    CHECK(result.exit_code == 2);
    CHECK(result.out.empty());
    CHECK(std::count(result.err.begin(), result.err.end(), '\n') == 1);
    return result.err;
  };
  CHECK(
      refusal({"-np", "2"}, {"--strategy", "parameter_server"}) ==
      "cnn_fmnist: this job has no parameter servers; start it with dtrun --ps N\n");
  CHECK(
      refusal({"-np", "3", "--ps", "1"}, {}) ==
      "cnn_fmnist: strategy multi_worker_mirrored: this job has parameter servers (dtrun --ps 1), "
      "whose workers step apart; use parameter_server, or start the job without --ps\n");
  CHECK(
      refusal({"-np", "2"}, {"--max-staleness", "1"}) ==
      "cnn_fmnist: --max-staleness: given with --strategy multi_worker_mirrored, expected "
      "--strategy parameter_server (see --help)\n");
  CHECK_THAT(
      refusal({"-np", "3", "--ps", "1"}, {"--strategy", "parameter_server", "--log-steps"}),
      Contains("cnn_fmnist: --log-steps: with parameter servers no rank sees all steps"));
  CHECK(
      refusal(
          {"-np", "3", "--ps", "1"}, {"--strategy", "parameter_server:cpu", "--device", "cuda"}) ==
      "cnn_fmnist: --device cuda: given with --strategy parameter_server:cpu, which names devices; "
      "expected one of the two (see --help)\n");
}

TEST_CASE("the name of the strategy may have the device of the workers") {
  const PsTraining trained;
  const auto train = [&](const std::string& strategy) {
    return Run(Job({"-np", "2", "--ps", "1"}, trained.Options({"--max-steps", "4"}), strategy));
  };
  const CommandResult cpu = train("parameter_server:cpu");
  CHECK(cpu.err == "");
  CHECK(cpu.exit_code == 0);
  const CommandResult other = train("parameter_server:tpu:0");
  CHECK_THAT(other.err, Contains("tpu:0"));
  CHECK(other.exit_code != 0);
}

TEST_CASE("an invalid command line is exit code 2 and unusable data is exit code 66") {
  const PsTraining trained;
  struct Row {
    Words launch, options;
    int code;
    std::string line;
  };
  const Row row = GENERATE(
      Row{{"--ps", "1"}, {"--max-staleness", "-1"}, 2, "cnn_fmnist: --max-staleness"},
      Row{{"--ps", "1"},
          {"--evaluator"},
          2,
          "cnn_fmnist: --evaluator scores checkpoints, so it needs --checkpoint-dir (see "
          "--help)\n"},
      Row{{"--ps", "1"}, {"--deterministic", "2"}, 2, "cnn_fmnist: --deterministic: gradients"},
      Row{{"--ps", "1"}, {"--network", "none"}, 2, "cnn_fmnist: --network"},
      Row{{"--ps", "1"}, {"--report", "run.html"}, 2, "cnn_fmnist: --report: with parameter"},
      Row{{}, {}, 2, "cnn_fmnist: this job has no parameter servers; start it with dtrun --ps N\n"},
      Row{{"--ps", "1"}, {"--data-dir", "/nowhere"}, 66, "cnn_fmnist: /nowhere"});
  Words launch = {"-np", "3"};
  launch.insert(launch.end(), row.launch.begin(), row.launch.end());
  Words options = trained.Options({});
  if (row.code == 66) options.erase(options.begin(), options.begin() + 2);
  options.insert(options.end(), row.options.begin(), row.options.end());
  const CommandResult result = Run(Job(launch, options));
  CAPTURE(row.options, result.err);
  CHECK(result.exit_code == row.code);
  CHECK_THAT(result.err, Contains(row.line));
}

}  // namespace
}  // namespace dtrun::testing
