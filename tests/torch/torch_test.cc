// <dtrun/torch.h> in processes under dtrun. torch_ranks.cc has the stories.

#include <catch2/catch.hpp>
#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/conformance/suite.h"
#include "tests/support/json.h"
#include "tests/support/subprocess.h"
#include "tests/support/text.h"
#include "tests/torch/told.h"

namespace {

using dtrun::testing::CheckStories;
using dtrun::testing::Command;
using dtrun::testing::CommandResult;
using dtrun::testing::ReadJson;
using dtrun::testing::ReadText;
using dtrun::testing::Run;
using dtrun::testing::RunsInFull;
using dtrun::testing::TemporaryFolder;
using dtrun::testing::Told;

// 2 and 3 ranks; with --full every number from `fewest` to 4.
std::vector<int> RanksFrom(int fewest) {
  if (!RunsInFull()) return {2, 3};
  return fewest == 1 ? std::vector<int>{1, 2, 3, 4} : std::vector<int>{2, 3, 4};
}

TEST_CASE("N ranks compute the gradients and losses of one process on the global batch") {
  const int ranks = GENERATE(from_range(RanksFrom(1)));
  CheckStories(ranks, {"zeroed", "none", "sum", "clipping"});
}

TEST_CASE("adasum combines the optimizer steps of all ranks") {
  const int ranks = GENERATE(1, 2, 4);
  CheckStories(ranks, {"adasum", "adasum_of_types"});
  CheckStories(3, {"adasum_refused"});
}

TEST_CASE("large gradients are created in the memory where they are reduced") {
  const int ranks = GENERATE(2, 3);
  CheckStories(
      ranks, {"own_zeroed", "own_none", "of_the_module", "zeroed_by_module", "kept", "spare",
              "accumulated", "two_models"});
}

TEST_CASE("large tensors reuse freed memory while a trainer exists") {
  const int ranks = GENERATE(1, 2);
  CheckStories(ranks, {"reused", "own", "bounded", "freed", "raw"});
}

TEST_CASE("schedulers and options reach the inner optimizer and the wrapper") {
  CheckStories(2, {"schedulers", "own_optimizer"});
}

TEST_CASE("one rank's overflow under a loss scale skips the step on all ranks") {
  CheckStories(3, {"loss_scale", "overflow"});
  CheckStories(2, {"loss_scale_adasum"});
}

TEST_CASE("unused and tied and frozen parameters behave as in one process") {
  const int ranks = GENERATE(from_range(RanksFrom(2)));
  CheckStories(ranks, {"unused", "zeros", "tied_frozen_groups"});
}

TEST_CASE("a step works with several passes or a closure or no pass") {
  const int ranks = GENERATE(from_range(RanksFrom(2)));
  CheckStories(ranks, {"accumulation", "closure", "no_backward"});
}

TEST_CASE("mistakes of a trainer are refused and training can continue") {
  CheckStories(2, {"second_pass", "failed_pass", "group_errors", "refusals"});
}

TEST_CASE("all ranks report the first difference of their models and the ranks that differ") {
  CHECK(
      Told("3", {"different_models"}) ==
      std::vector<std::string>{
          "0: 2: the ranks have different gradients to reduce: gradient 0 is 'weight [2, 4]' "
          "f32[8] "
          "on ranks 0 and 2, 'weight [3, 4]' f32[12] on rank 1",
          "1: 2: the ranks have different gradients to reduce: gradient 0 is 'weight [2, 4]' "
          "f32[8] "
          "on ranks 0 and 2, 'weight [3, 4]' f32[12] on rank 1",
          "2: 2: the ranks have different gradients to reduce: gradient 0 is 'weight [2, 4]' "
          "f32[8] "
          "on ranks 0 and 2, 'weight [3, 4]' f32[12] on rank 1"});
  const std::vector<std::string> shapes = Told("2", {"different_shapes"});
  REQUIRE(shapes.size() == 2);
  CHECK_THAT(
      shapes[0],
      Catch::EndsWith("'weight [2, 4]' f32[8] on rank 0, 'weight [4, 2]' f32[8] on rank 1"));
  const std::vector<std::string> broadcast = Told("3", {"different_broadcast"});
  REQUIRE(broadcast.size() == 3);
  CHECK(
      broadcast[2] ==
      "2: 2: broadcast_parameters: the ranks differ in tensor 0: 'weight' Float[2, 4] on ranks 0, "
      "2, 'weight' Float[3, 4] on rank 1");
}

TEST_CASE("a LibTorch that is too old is refused at compile time") {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder.path() + "/torch");
  folder.Write(
      "torch/version.h", "#define TORCH_VERSION_MAJOR 1\n#define TORCH_VERSION_MINOR 12\n");
  folder.Write("torch/torch.h", "");
  const CommandResult result = Run(Command{
      .argv = {
          "g++", "-std=c++17", "-fsyntax-only", "-fmax-errors=1", "-I", folder.path(), "-I",
          "include", "include/dtrun/detail/torch_tensors.h"}});
  CHECK(result.exit_code != 0);
  CHECK_THAT(
      result.err,
      Catch::Contains("dtrun/torch.h: this LibTorch is too old; expected 1.13 or newer"));
}

TEST_CASE("parameters of every float type and with any strides are reduced") {
  CheckStories(2, {"types", "strides", "wire", "own_wire"});
}

TEST_CASE("buffers and optimizer state and samplers and tensors work across ranks") {
  const int ranks = GENERATE(2, 3);
  CheckStories(ranks, {"buffers", "states", "state_of_adagrad", "sampler", "tensors"});
}

TEST_CASE("every collective works on tensors, also uneven and at once, and refuses bad input") {
  const int ranks = GENERATE(1, 2, 3);
  CheckStories(ranks, {"collectives"});
  if (ranks == 2) CheckStories(ranks, {"refused_collectives"});
}

TEST_CASE("batch norms over all ranks train as in one process on the global batch") {
  const int ranks = GENERATE(from_range(RanksFrom(1)));
  CheckStories(ranks, {"sync_batch_norms", "sync_batch_norm", "refused_batch_norms"});
}

TEST_CASE("ranks with different numbers of batches train as one process on all of them") {
  const int ranks = GENERATE(from_range(RanksFrom(1)));
  CheckStories(ranks, {"uneven", "uneven_sum"});
  if (ranks == 2) CheckStories(ranks, {"refused_join"});
}

TEST_CASE("sparse gradients of embeddings are gathered by rows") {
  const int ranks = GENERATE(from_range(RanksFrom(1)));
  CheckStories(ranks, {"sparse", "sparse_alone", "refused_sparse"});
}

TEST_CASE("an optimizer with sharded state computes the bits of one that is not sharded") {
  const int ranks = GENERATE(from_range(RanksFrom(1)));
  CheckStories(ranks, {"sharded", "refused_sharded"});
}

TEST_CASE("a checkpoint of a model and its optimizer continues with the bits of no break") {
  const int ranks = GENERATE(1, 2, 3);
  CheckStories(ranks, {"checkpoints"});
}

TEST_CASE("the example trains and prints its accuracy") {
  const CommandResult result = Run(Command{
      .argv = {
          "launcher/dtrun", "--tag", "none", "-np", "2", "examples/torch_fmnist", "--steps", "50",
          "--batch-size", "16"}});
  CHECK(result.exit_code == 0);
  CHECK(result.err == "");
  REQUIRE_THAT(
      result.out,
      Catch::StartsWith("step 50: loss ") && Catch::Contains("\naccuracy on 2000 test images 0."));
  CHECK(std::stod(result.out.substr(result.out.rfind(' '))) > 0.5);  // guessing gives 0.1
}

// torch_perf --network transformer beside a peer that says it has this many parameters.
CommandResult TorchPerf(const TemporaryFolder& folder, int64_t parameters) {
  const std::string peer = folder.Write(
      "peer.sh",
      "echo \"$RANK $WORLD_SIZE $MASTER_ADDR $*\" >>" + folder.path() +
          "/told\necho 'ready {\"name\": \"Peer 1\", \"variants\": [\"ddp\", \"alone\"], "
          "\"parameters\": " +
          std::to_string(parameters) + "}'\nwhile read -r step; do sleep 0.01; echo done; done\n");
  return Run(Command{
      .argv = {
          "launcher/dtrun", "--launcher", "mpirun", "--tag", "none", "-np", "2", "bench/torch_perf",
          "--beside-others", "--rounds", "1", "--network", "transformer", "--peer", "sh " + peer,
          "--json", folder.path() + "/rows.json"}});
}

TEST_CASE("torch_perf measures a transformer beside DistributedDataParallel") {
  const TemporaryFolder folder;
  const CommandResult result = TorchPerf(folder, 10'002'944);
  CAPTURE(result.out, result.err);
  CHECK(result.exit_code == 0);
  const nlohmann::json row = ReadJson(folder.path() + "/rows.json").at(0);
  CHECK(row["case"] == "transformer");
  CHECK(row["parameters"] == 10'002'944);
  CHECK(row["peer"] == "Peer 1");
  for (const char* side :
       {"dtrun", "after_backward", "after_backward_reusing", "alone", "peer_ddp", "peer_alone"})
    CHECK(row["step_us"][side].get<double>() > 0);
  CHECK(row["ratio"]["dtrun"] == 1);
  CHECK_THAT(result.out, Catch::Contains("Peer 1: DDP ") && Catch::Contains("exposed"));
  const std::string told = ReadText(folder.path() + "/told");
  for (const char* rank : {"0", "1"})
    CHECK_THAT(
        told, Catch::Contains(
                  rank + std::string(" 2 127.0.0.1 --serve --network transformer --batch 4\n")));
}

TEST_CASE("torch_perf refuses a peer that trains another network") {
  const TemporaryFolder folder;
  const CommandResult result = TorchPerf(folder, 7);
  CHECK(result.exit_code == 2);
  CHECK_THAT(result.err, Catch::Contains("its transformer has 7 parameters, this one 10002944"));
}

TEST_CASE("a model works after its DistributedOptimizer is destroyed") {
  CheckStories(2, {"afterwards"});
}

// Trains for 60 steps on two ranks with an optimizer whose state is spread over them.
CommandResult TrainSharded(const std::string& kind, const std::vector<std::string>& options) {
  Command command{.argv = {"launcher/dtrun", "--tag", "none", "-np", "2", "--restarts", "2"}};
  command.timeout = std::chrono::minutes(2);
  command.argv.insert(command.argv.end(), options.begin(), options.end());
  command.argv.insert(command.argv.end(), {"tests/torch/torch_ranks", "elastic", kind, "60"});
  return Run(command);
}

std::vector<std::string> KeptKinds() {
  if (!RunsInFull()) return {"adam", "momentum"};
  return {"adam", "adamw", "momentum", "sgd", "rmsprop", "adagrad"};
}

TEST_CASE("the sharded state of LibTorch's optimizers survives lost ranks, bit for bit") {
  const std::string kind = GENERATE(from_range(KeptKinds()));
  CAPTURE(kind);
  const CommandResult calm = TrainSharded(kind, {});
  CAPTURE(calm.err);
  REQUIRE(calm.out.find("60 steps, digest ") == 0);
  // The third loss finds no restart left, so that one rank goes on with the state of both.
  const CommandResult result = TrainSharded(
      kind, {"--min-np", "1", "--inject",
             "kill rank 1 at step 20; kill rank 0 at step 30; kill rank 1 at step 45"});
  CAPTURE(result.err);
  CHECK(result.exit_code == 0);
  CHECK(result.out == calm.out);
  CHECK(result.err.find("; the job goes on with 1 rank\n") != std::string::npos);
}

TEST_CASE("an optimizer of which dtrun does not know the state is not kept") {
  const CommandResult result = TrainSharded("lbfgs", {});
  CHECK(result.exit_code == 2);
  CHECK_THAT(
      result.err, Catch::Contains("Keep: found a ShardedOptimizer of a class that dtrun does not "
                                  "know; expected Adam, AdamW, SGD, RMSprop or Adagrad"));
}

CommandResult RunElasticExample(const std::vector<std::string>& options = {}) {
  Command command{
      .argv = {"launcher/dtrun", "--tag", "none", "-np", "2", "--restarts", "3"},
      .timeout = std::chrono::minutes(3)};
  command.argv.insert(command.argv.end(), options.begin(), options.end());
  command.argv.insert(command.argv.end(), {"examples/torch_elastic", "4000"});
  return Run(command);
}

TEST_CASE("the elastic example loses a rank and ends with the loss of one that was left alone") {
  const CommandResult calm = RunElasticExample();
  CAPTURE(calm.err);
  REQUIRE(calm.out.find("loss after 4000 steps ") == 0);
  for (const std::string launcher : {"local", "mpirun"}) {
    if (launcher == "mpirun" && !RunsInFull()) continue;
    const CommandResult result =
        RunElasticExample({"--launcher", launcher, "--inject", "kill rank 1 at step 1500"});
    CAPTURE(launcher, result.err);
    CHECK(result.exit_code == 0);
    CHECK(result.out == calm.out);
    CHECK(result.err.find("dtrun: all 2 ranks go on, ") != std::string::npos);
  }
}

}  // namespace
