// Strategies with GPUs: the programs of models/strategies, whose networks compute on the devices
// that a strategy names.

#include <catch2/catch.hpp>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "tests/models/idx_files.h"
#include "tests/support/subprocess.h"

namespace dtrun::testing {
namespace {

namespace fs = std::filesystem;
using Catch::Contains;
using Words = std::vector<std::string>;

// Runs a program of models/strategies in a folder of its own.
class StrategyProgram {
 public:
  StrategyProgram() { WriteToySet(data_, 128); }

  CommandResult Run(int np, const Words& words, int servers = 0) const {
    std::string line =
        "cd " + work_.path() + " && exec " + fs::absolute("launcher/dtrun").string() +
        " --tag none -np " + std::to_string(np) +
        (servers > 0 ? " --ps " + std::to_string(servers) : "") + " env DTRUN_SIMULATED_GPUS=2 " +
        fs::absolute("models/strategies/" + words[0]).string();
    for (size_t i = 1; i < words.size(); ++i) line += " '" + words[i] + "'";
    return testing::Run(
        {.argv = {"bash", "-c", line},
         .environment = {{"LD_LIBRARY_PATH", fs::absolute("tests/gpu_simulator").string()}}});
  }
  std::string data() const { return data_.path(); }
  std::string path() const { return work_.path(); }

 private:
  TemporaryFolder data_, work_;
};

// The number behind `name` in the last line that has it.
double LastNumber(const std::string& text, const std::string& name) {
  const size_t at = text.rfind(name);
  REQUIRE(at != std::string::npos);
  return std::stod(text.substr(at + name.size()));
}

// The other two rows, over two hosts, are in tests/multihost/training_test.cc.
TEST_CASE("one program trains under every strategy on the CPU and on GPUs") {
  struct Row {
    std::string what;
    int np, servers;
    std::string cpu, gpu;
  };
  const std::vector<Row> rows = {
      {"default", 1, 0, "default", "default:cuda:0"},
      {"one_device", 1, 0, "one_device:cpu", "one_device:cuda:0"},
      {"mirrored, 2 replicas in a process", 1, 0, "mirrored:cpu,cpu", "mirrored:cuda:0,cuda:1"},
      {"mirrored, 2 ranks", 2, 0, "mirrored:cpu,cpu", "mirrored:cuda:0,cuda:1"},
      {"central_storage", 2, 0, "central_storage:cpu,cpu", "central_storage:gpu:*"},
      {"parameter_server", 3, 1, "parameter_server", "parameter_server:gpu:*"}};
  const StrategyProgram program;
  struct Result {
    double loss;
    std::string digest;
  };
  std::map<std::string, Result> results[2];
  for (const Row& row : rows) {
    for (const bool gpu : {false, true}) {
      const CommandResult result = program.Run(
          row.np, {"custom_training_loop", program.data(), gpu ? row.gpu : row.cpu, "2"},
          row.servers);
      INFO(row.what << ": " << result.err);
      REQUIRE(result.exit_code == 0);
      const size_t at = result.out.rfind("Parameters: ");
      REQUIRE(at != std::string::npos);
      results[gpu][row.what] = {
          LastNumber(result.out, "Test Loss: "), result.out.substr(at + 12, 16)};
      WARN(
          row.what << (gpu ? " on GPUs: loss " : " on the CPU: loss ")
                   << results[gpu][row.what].loss << ", parameters "
                   << results[gpu][row.what].digest);
    }
    const bool asynchronous = row.servers > 0;
    CHECK(
        results[1][row.what].loss ==
        Approx(results[0][row.what].loss).epsilon(asynchronous ? 0.3 : 1e-3));
  }
  for (std::map<std::string, Result>& of : results) {
    CHECK(of["default"].digest == of["one_device"].digest);
    CHECK(of["mirrored, 2 replicas in a process"].digest == of["mirrored, 2 ranks"].digest);
    CHECK(of["central_storage"].loss == Approx(of["mirrored, 2 ranks"].loss).epsilon(1e-4));
  }
}

TEST_CASE("a custom loop trains on the GPUs that its strategy names as on the CPU") {
  const StrategyProgram program;
  const auto test_loss = [&](int np, const std::string& strategy) {
    const CommandResult result =
        program.Run(np, {"custom_training_loop", program.data(), strategy, "2"});
    INFO(result.err);
    REQUIRE(result.exit_code == 0);
    return LastNumber(result.out, "Test Loss: ");
  };
  CHECK(test_loss(1, "one_device:cuda:0") == Approx(test_loss(1, "one_device:cpu")).epsilon(1e-2));
  CHECK(
      test_loss(2, "mirrored:cuda:0,cuda:1") ==
      Approx(test_loss(2, "mirrored:cpu,cpu")).epsilon(1e-2));
  CHECK(
      test_loss(2, "central_storage:gpu:*") ==
      Approx(test_loss(2, "central_storage")).epsilon(1e-2));
  const CommandResult restored =
      program.Run(1, {"restore_without_strategy", "A", "training_checkpoints", program.data()});
  CHECK_THAT(restored.out, Contains("without a strategy: loss "));
}

TEST_CASE("a worker on a GPU trains as the CPU does with variables of parameter servers") {
  const StrategyProgram program;
  const auto test_loss = [&](int np, int servers, const std::string& strategy) {
    const CommandResult result =
        program.Run(np, {"custom_training_loop", program.data(), strategy, "2"}, servers);
    INFO(strategy << result.err);
    REQUIRE(result.exit_code == 0);
    return LastNumber(result.out, "Test Loss: ");
  };
  // A single worker makes the steps of one device.
  const double alone = test_loss(1, 0, "one_device:cpu");
  CHECK(test_loss(2, 1, "parameter_server:cuda:0") == Approx(alone).epsilon(1e-2));
  CHECK(test_loss(3, 2, "parameter_server:cuda:1") == Approx(alone).epsilon(1e-2));
  CHECK(test_loss(3, 1, "parameter_server:cuda:0,cuda:1") < 2.5);
  const CommandResult missing =
      program.Run(2, {"custom_training_loop", program.data(), "parameter_server:cuda:2"}, 1);
  CHECK(missing.exit_code != 0);
  CHECK_THAT(missing.err, Contains("device cuda:2: this host has 2 GPUs; use cpu"));
}

TEST_CASE("fit on two GPUs calls callbacks and saves what the CPU restores") {
  const StrategyProgram program;
  const CommandResult result =
      program.Run(2, {"fit_with_callbacks", program.data(), "mirrored:cuda:0,cuda:1", "2"});
  INFO(result.err);
  REQUIRE(result.exit_code == 0);
  CHECK_THAT(
      result.out, Contains("Number of devices: 2") &&
                      Contains("Learning rate for epoch 2 is 0.001") && Contains("Eval loss: "));
  CHECK(fs::exists(program.path() + "/logs/train"));
  CHECK(fs::exists(program.path() + "/saved_model/model.json"));
  const CommandResult restored =
      program.Run(1, {"restore_without_strategy", "B", "training_checkpoints", program.data()});
  INFO(restored.out << restored.err);
  CHECK(
      LastNumber(restored.out, "loss ") ==
      Approx(LastNumber(result.out, "Eval loss: ")).epsilon(1e-2));
}

TEST_CASE("strategies refuse GPUs that are missing, repeated or mixed with the CPU") {
  const StrategyProgram program;
  const auto refusal = [&](int np, const std::string& strategy) {
    const CommandResult result =
        program.Run(np, {"custom_training_loop", program.data(), strategy, "1"});
    CHECK(result.exit_code == 2);
    return result.err;
  };
  CHECK_THAT(
      refusal(1, "one_device:cuda:2"), Contains("device cuda:2: this host has 2 GPUs; use cpu"));
  CHECK_THAT(refusal(2, "mirrored:cpu,cuda:0"), Contains("expected GPUs for all ranks, or cpu"));
  CHECK_THAT(
      refusal(2, "mirrored:cuda:1,cuda:1"),
      Contains("strategy mirrored: found cuda:1 twice; expected another GPU for each rank"));
  CHECK_THAT(
      refusal(3, "mirrored:gpu:*"), Contains("3 ranks on a host with 2 GPUs for them; expected"));
}

}  // namespace
}  // namespace dtrun::testing
