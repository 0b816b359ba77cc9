// <dtrun/torch.h> in processes under dtrun; what they do stands in torch_ranks.cc.

#include <catch2/catch.hpp>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/support/subprocess.h"
#include "tests/torch/told.h"

namespace {

using dtrun::testing::CheckStories;
using dtrun::testing::Command;
using dtrun::testing::CommandResult;
using dtrun::testing::Run;
using dtrun::testing::TemporaryFolder;
using dtrun::testing::Told;

TEST_CASE("N ranks compute the gradients and losses of one process on the global batch") {
  const int ranks = GENERATE(1, 2, 3);
  CheckStories(ranks, {"zeroed", "none", "sum", "clipping"});
}

TEST_CASE("steps that each rank makes by itself are combined by adaptive summation") {
  const int ranks = GENERATE(1, 2, 4);
  CheckStories(ranks, {"adasum", "adasum_of_types"});
  CheckStories(3, {"adasum_refused"});
}

TEST_CASE("large gradients are made where they are reduced, whatever becomes of them") {
  const int ranks = GENERATE(2, 3);
  CheckStories(
      ranks, {"own_zeroed", "own_none", "of_the_module", "zeroed_by_module", "kept", "spare",
              "accumulated", "two_models"});
}

TEST_CASE("large tensors get the memory of freed ones, as long as a trainer is there") {
  const int ranks = GENERATE(1, 2);
  CheckStories(ranks, {"reused", "own", "bounded", "freed", "raw"});
}

TEST_CASE("schedulers and options reach the inner optimizer, whoever changes them") {
  CheckStories(2, {"schedulers", "own_optimizer"});
}

TEST_CASE("unused, tied and frozen parameters behave as in one process") {
  const int ranks = GENERATE(2, 3);
  CheckStories(ranks, {"unused", "zeros", "tied_frozen_groups"});
}

TEST_CASE("several passes per step, closures and steps without a pass") {
  const int ranks = GENERATE(2, 3);
  CheckStories(ranks, {"accumulation", "closure", "no_backward"});
}

TEST_CASE("what cannot be right is refused and named, and training can go on") {
  CheckStories(2, {"second_pass", "failed_pass", "group_errors", "refusals"});
}

TEST_CASE("different models on the ranks: all are told the first difference, and who differs") {
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

TEST_CASE("a LibTorch that is too old is refused by name when the trainer is compiled") {
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

TEST_CASE("16-bit and double parameters, and memory in any order") {
  CheckStories(2, {"types", "strides", "wire"});
}

TEST_CASE("buffers, optimizer state, samplers and tensors go to all ranks") {
  const int ranks = GENERATE(2, 3);
  CheckStories(ranks, {"buffers", "states", "state_of_adagrad", "sampler", "tensors"});
}

TEST_CASE("the example trains, and says how far it came") {
  const CommandResult result = Run(Command{
      .argv = {
          "launcher/dtrun", "--tag", "none", "-np", "2", "examples/torch_fmnist", "--steps", "50",
          "--batch-size", "16"}});
  CHECK(result.exit_code == 0);
  CHECK(result.err == "");
  REQUIRE_THAT(
      result.out,
      Catch::StartsWith("step 50: loss ") && Catch::Contains("\naccuracy on 2000 test images 0."));
  CHECK(std::stod(result.out.substr(result.out.rfind(' '))) > 0.5);  // a tenth by guessing
}

TEST_CASE("a model goes on without the optimizer that wrapped it") {
  CheckStories(2, {"afterwards"});
}

}  // namespace
