// <dtrun/torch.h> with tensors on GPUs, in processes under dtrun. gpu_stories.cc has the
// stories.

#include <catch2/catch.hpp>

#include "tests/torch/told.h"

namespace {

using dtrun::testing::CheckStories;

const char* const kProgram = "tests/torch/torch_gpu_ranks";

TEST_CASE("ranks on GPUs compute the gradients and losses of one process on the CPU") {
  const int ranks = GENERATE(1, 2, 3);  // of three, two share a GPU
  CheckStories(ranks, {"zeroed", "none", "sum", "own_stream"}, kProgram);
}

TEST_CASE("large and unused and accumulated gradients are reduced on GPUs") {
  const int ranks = GENERATE(2, 3);
  CheckStories(ranks, {"large", "unused", "accumulation"}, kProgram);
}

TEST_CASE("tensors and optimizer state on GPUs are sent to all ranks") {
  const int ranks = GENERATE(2, 3);
  CheckStories(ranks, {"tensors", "registered", "state"}, kProgram);
}

TEST_CASE("adasum and wire formats reduce the gradients of GPUs") {
  CheckStories(2, {"adasum", "compressed"}, kProgram);
}

TEST_CASE("mixed devices are refused with the name of the parameter") {
  CheckStories(2, {"refused"}, kProgram);
}

}  // namespace
