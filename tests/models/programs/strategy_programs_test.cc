// The programs of models/strategies, and cnn_fmnist --strategy: without dtrun, under dtrun and
// started by hand with a TF_CONFIG. Each test starts real processes.

#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <future>
#include <string>
#include <vector>

#include "tests/models/idx_files.h"
#include "tests/support/json.h"
#include "tests/support/subprocess.h"

namespace dtrun::testing {
namespace {

namespace fs = std::filesystem;
using Catch::Matchers::Contains;
using Words = std::vector<std::string>;

// A toy data set, and a working folder for the programs.
class Workplace {
 public:
  Workplace() { WriteToySet(data_, 512); }

  std::string data() const { return data_.path(); }
  std::string path() const { return work_.path(); }

  // Runs a program in the working folder. If `np` is 0, it runs without dtrun.
  CommandResult Run(
      int np, Words words, const std::vector<std::pair<std::string, std::string>>& environment = {},
      int servers = 0) const {
    words[0] = fs::absolute("models/" + words[0]);
    std::string line = "cd " + path() + " && exec";
    if (np > 0)
      line +=
          " " + fs::absolute("launcher/dtrun").string() + " --tag none -np " + std::to_string(np);
    if (servers > 0) line += " --ps " + std::to_string(servers);
    for (const std::string& word : words) line += " '" + word + "'";
    return testing::Run({.argv = {"bash", "-c", line}, .environment = environment});
  }

 private:
  TemporaryFolder data_, work_;
};

TEST_CASE("a custom loop trains under a strategy and restores with and without a strategy") {
  const Workplace work;
  const std::string strategy = GENERATE("mirrored", "central_storage");
  const CommandResult trained =
      work.Run(2, {"strategies/custom_training_loop", work.data(), strategy, "3"});
  INFO(trained.err);
  REQUIRE(trained.exit_code == 0);
  CHECK_THAT(
      trained.out,
      Contains("Epoch 1, Loss: ") && Contains("Epoch 3, Loss: ") && Contains(", Test Accuracy: "));
  const std::string last = trained.out.substr(trained.out.rfind("Test Loss: "));
  const double loss = std::stod(last.substr(11));
  const Words restore = {
      "strategies/restore_without_strategy", "A", "training_checkpoints", work.data()};
  const auto restored = [&](int np, const std::string& how) {
    Words words = restore;
    if (!how.empty()) words.push_back(how);
    const CommandResult result = work.Run(np, words);
    INFO(result.err);
    REQUIRE(result.exit_code == 0);
    CHECK_THAT(result.out, Contains(how.empty() ? "without a strategy" : "under " + how));
    return std::stod(result.out.substr(result.out.find("loss ") + 5));
  };
  CHECK(restored(0, "") == Approx(loss).margin(2e-3));
  CHECK(restored(3, "mirrored") == restored(0, ""));
  CHECK(restored(2, "central_storage") == Approx(restored(0, "")).margin(2e-4));
}

TEST_CASE("the same program learns under every strategy") {
  const Workplace work;
  struct Row {
    int np, servers;
    std::string strategy;
  };
  const Row row = GENERATE(
      Row{0, 0, "default"}, Row{0, 0, "one_device"}, Row{2, 0, "mirrored"},
      Row{2, 0, "multi_worker_mirrored"}, Row{2, 0, "central_storage"},
      Row{3, 1, "parameter_server"}, Row{4, 2, "parameter_server"});
  const CommandResult result = work.Run(
      row.np, {"strategies/custom_training_loop", work.data(), row.strategy, "4"}, {}, row.servers);
  INFO(row.strategy << result.out << result.err);
  REQUIRE(result.exit_code == 0);
  CHECK_THAT(result.out, Contains("Epoch 1, Loss: "));
  CHECK(std::count(result.out.begin(), result.out.end(), '\n') == 5);  // of the chief
  CHECK_THAT(result.out, Contains("\nParameters: "));
  const std::string last = result.out.substr(result.out.rfind("Test Accuracy: ") + 15);
  CHECK(std::stod(last) > 90);
  const CommandResult restored = work.Run(
      0, {"strategies/restore_without_strategy", "A", "training_checkpoints", work.data()});
  INFO(restored.err);
  CHECK_THAT(restored.out, Contains("without a strategy: loss "));
}

TEST_CASE("fit with callbacks logs and lowers the rate and saves checkpoints and the model") {
  const Workplace work;
  const CommandResult result =
      work.Run(2, {"strategies/fit_with_callbacks", work.data(), "central_storage", "4"});
  INFO(result.err);
  REQUIRE(result.exit_code == 0);
  CHECK_THAT(
      result.out, Contains("Number of devices: 2") &&
                      Contains("Learning rate for epoch 1 is 0.001") &&
                      Contains("Learning rate for epoch 4 is 0.0001") && Contains("Eval loss: "));
  CHECK(fs::exists(work.path() + "/training_checkpoints/ckpt_4"));
  CHECK(fs::exists(work.path() + "/logs/train"));
  CHECK(fs::exists(work.path() + "/saved_model/model.json"));
  const CommandResult restored = work.Run(
      0, {"strategies/restore_without_strategy", "B", "training_checkpoints", work.data()});
  CHECK_THAT(restored.out, Contains("Restored ckpt_4 without a strategy: loss "));
}

TEST_CASE("fit with callbacks runs on the workers of parameter servers") {
  const Workplace work;
  const CommandResult result =
      work.Run(3, {"strategies/fit_with_callbacks", work.data(), "parameter_server", "4"}, {}, 1);
  INFO(result.out << result.err);
  REQUIRE(result.exit_code == 0);
  CHECK_THAT(result.out, Contains("Number of devices: 1") && Contains("Eval loss: "));
  CHECK_THAT(result.out, Contains("Learning rate for epoch 4 is 0.0001"));
  const std::string accuracy = result.out.substr(result.out.rfind("Eval accuracy: ") + 15);
  CHECK(std::stod(accuracy) > 0.9);
  CHECK(fs::exists(work.path() + "/training_checkpoints/ckpt_4"));
  CHECK(fs::exists(work.path() + "/logs/train"));
  CHECK(fs::exists(work.path() + "/saved_model/model.json"));
}

std::string TfConfig(const std::string& workers, int index) {
  return "{\"cluster\": {\"worker\": [" + workers + "]}, \"task\": {\"type\": \"worker\", " +
         "\"index\": " + std::to_string(index) + "}}";
}

TEST_CASE("two workers of a TF_CONFIG train one model and resume from their backup") {
  const Workplace work;
  const std::string port = std::to_string(20000 + ::getpid() % 20000);
  const std::string workers = "\"localhost:" + port + "\", \"localhost:1" + port + "\"";
  const auto train = [&](const std::string& epochs) {
    const auto worker = [&, epochs](int index) {
      return work.Run(
          0, {"strategies/multi_worker", work.data(), epochs},
          {{"TF_CONFIG", TfConfig(workers, index)}});
    };
    auto second = std::async(std::launch::async, worker, 1);
    const CommandResult chief = worker(0), other = second.get();
    INFO(chief.err << other.err);
    REQUIRE(chief.exit_code == 0);
    REQUIRE(other.exit_code == 0);
    CHECK(other.out.empty());
    CHECK_THAT(chief.out, Contains("The chief of 2 workers has saved the model "));
    return chief.out;
  };
  train("1");
  const std::string resumed = train("3");
  CHECK_THAT(resumed, Contains("Resuming from backup/ckpt_4 in epoch 2, batch 1"));
  fs::remove_all(work.path() + "/backup");
  const std::string whole = train("3");
  CHECK(resumed.substr(resumed.rfind(' ')) == whole.substr(whole.rfind(' ')));
}

TEST_CASE("an invalid TF_CONFIG or a task that does not exist is exit code 2") {
  const Workplace work;
  const auto refusal = [&](const std::string& config) {
    const CommandResult result =
        work.Run(0, {"strategies/multi_worker", work.data()}, {{"TF_CONFIG", config}});
    CHECK(result.exit_code == 2);
    CHECK(result.out.empty());
    return result.err;
  };
  CHECK_THAT(refusal("{"), Contains("multi_worker: ") && Contains("TF_CONFIG: found '{'"));
  CHECK_THAT(
      refusal(TfConfig("\"localhost:1\", \"localhost:2\"", 2)),
      Contains("TF_CONFIG: task.index is '2'; expected a number below 2"));
  CHECK_THAT(refusal(TfConfig("\"localhost\"", 0)), Contains("expected \"host:port\""));
}

Words CnnFmnistUnder(const Workplace& work, const std::string& strategy, const Words& more = {}) {
  Words words = {"cnn_fmnist", "--threads", "1",          "--data-dir", work.data(),
                 "--verbose",  "0",         "--strategy", strategy};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

TEST_CASE("cnn_fmnist --strategy changes the distribution but not the losses") {
  const Workplace work;
  const Words options = {"--global-batch-size", "48",     "--optimizer", "sgd",
                         "--learning-rate",     "0.05",   "--max-steps", "20",
                         "--log-steps",         "--json", "result.json"};
  const auto steps = [&](int np, const std::string& strategy) {
    const CommandResult result = work.Run(np, CnnFmnistUnder(work, strategy, options));
    INFO(result.err);
    REQUIRE(result.exit_code == 0);
    return ReadJson(work.path() + "/result.json")["steps"];
  };
  const nlohmann::json expected = steps(1, "one_device:cpu");
  REQUIRE(expected.size() == 20);
  for (const char* strategy : {"mirrored", "multi_worker_mirrored", "central_storage"}) {
    CAPTURE(strategy);
    const nlohmann::json found = steps(2, strategy);
    for (size_t i = 0; i < 20; ++i)
      CHECK(std::abs(found[i].get<double>() - expected[i].get<double>()) < 1e-5);
  }
}

TEST_CASE("an impossible strategy is one line and exit code 2") {
  const Workplace work;
  const auto refusal = [&](int np, const std::string& strategy, const Words& more = {}) {
    Words options = {"--batch-size", "16", "--max-steps", "2"};
    options.insert(options.end(), more.begin(), more.end());
    const CommandResult result = work.Run(np, CnnFmnistUnder(work, strategy, options));
    CHECK(result.exit_code == 2);
    CHECK(result.out.empty());
    CHECK(std::count(result.err.begin(), result.err.end(), '\n') == 1);
    return result.err;
  };
  CHECK(
      refusal(2, "mirored") ==
      "cnn_fmnist: strategy 'mirored' is unknown; expected one of default, one_device, mirrored, "
      "multi_worker_mirrored, central_storage, parameter_server\n");
  CHECK_THAT(refusal(2, "tpu"), Contains("strategy tpu: ") && Contains("use mirrored"));
  CHECK_THAT(refusal(2, "one_device"), Contains("found 2 ranks; expected 1"));
  CHECK_THAT(refusal(1, "one_device:cuda:0"), Contains("device cuda:0: ") && Contains("use cpu"));
  CHECK_THAT(refusal(2, "mirrored:cpu"), Contains("found 1 devices and 2 ranks"));
  CHECK_THAT(
      refusal(2, "central_storage", {"--optimizer", "lamb"}),
      Contains("strategy central_storage: ") && Contains("cannot be cut into slices; use"));
  const CommandResult servers =
      work.Run(2, {"strategies/custom_training_loop", work.data(), "parameter_server"});
  CHECK(servers.exit_code == 2);
  CHECK(
      servers.err ==
      "custom_training_loop: strategy parameter_server: this job has no parameter servers; start "
      "it with dtrun --ps N\n");
  const CommandResult custom = work.Run(2, {"strategies/custom_training_loop", work.data(), "x"});
  CHECK(custom.exit_code == 2);
  CHECK_THAT(custom.err, Contains("custom_training_loop: strategy 'x' is unknown"));
}

TEST_CASE("the strategy programs have fewer than 120 lines and are on the page") {
  for (const char* name :
       {"custom_training_loop", "fit_with_callbacks", "multi_worker", "restore_without_strategy"}) {
    std::ifstream source("models/strategies/" + std::string(name) + ".cc");
    REQUIRE(source.is_open());
    int lines = 0;
    for (std::string line; std::getline(source, line);) ++lines;
    CHECK(lines < 120);
    std::ifstream page("docs/guides/strategies.md");
    const std::string text{std::istreambuf_iterator<char>(page), {}};
    CHECK_THAT(text, Contains("models/strategies/" + std::string(name) + ".cc"));
  }
}

}  // namespace
}  // namespace dtrun::testing
