// Real processes: ps_fmnist under dtrun --ps, on a small set that can be learned.

#include <signal.h>

#include <catch2/catch.hpp>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <vector>

#include "tests/models/idx_files.h"
#include "tests/support/subprocess.h"

namespace dtrun::testing {
namespace {

using Catch::Contains;
using nlohmann::json;
using Words = std::vector<std::string>;

Command Job(const Words& launch, const Words& options) {
  Words argv = {"launcher/dtrun", "--tag", "none", "--launcher", "local", "--threads", "1"};
  argv.insert(argv.end(), launch.begin(), launch.end());
  argv.push_back("models/ps_fmnist");
  argv.insert(argv.end(), options.begin(), options.end());
  return {.argv = argv};
}

// A set of 400 images, and jobs on it.
struct Trained {
  Trained() { WriteToySet(folder, 400); }
  Words Options(const Words& more) const {
    Words options = {"--data-dir",   folder.path(), "--network", "mlp",
                     "--batch-size", "20",          "--json",    folder.path() + "/result.json"};
    options.insert(options.end(), more.begin(), more.end());
    return options;
  }
  json Result() const { return json::parse(std::ifstream(folder.path() + "/result.json")); }

  TemporaryFolder folder;
};

TEST_CASE("workers learn together, and staleness is told") {
  const Trained trained;
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

TEST_CASE("a bound of 0 makes workers take turns") {
  const Trained trained;
  const CommandResult result = Run(
      Job({"-np", "3", "--ps", "1"}, trained.Options({"--epochs", "2", "--max-staleness", "0"})));
  REQUIRE(result.exit_code == 0);
  CHECK(trained.Result()["staleness"] == json({40}));
}

TEST_CASE("training goes on from a checkpoint, and an evaluator has scored it") {
  const Trained trained;
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

TEST_CASE("a wrong command line is one line and code 2, unusable data 66") {
  const Trained trained;
  struct Row {
    Words launch, options;
    int code;
    std::string line;
  };
  const Row row = GENERATE(
      Row{{"--ps", "1"}, {"--max-staleness", "-1"}, 2, "ps_fmnist: --max-staleness"},
      Row{{"--ps", "1"},
          {"--evaluator"},
          2,
          "ps_fmnist: --evaluator scores checkpoints, so it needs --checkpoint-dir (see --help)\n"},
      Row{{"--ps", "1"}, {"--deterministic", "2"}, 2, "ps_fmnist: --deterministic: gradients come"},
      Row{{"--ps", "1"}, {"--network", "none"}, 2, "ps_fmnist: --network"},
      Row{{}, {}, 2, "ps_fmnist: this job has no parameter servers; start it with dtrun --ps N\n"},
      Row{{"--ps", "1"}, {"--data-dir", "/nowhere"}, 66, "ps_fmnist: /nowhere"});
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
