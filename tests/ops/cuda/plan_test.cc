// The arguments of a call's kernel. MakePlan is pure, so the tests need no GPU.

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "ops/cuda/kernel_call.h"

namespace dtrun::ops::cuda {
namespace {

constexpr uint32_t kBlocks = 33;

char storage[64];

Collective Of(CollectiveKind kind, uint64_t input, uint64_t output, DType dtype = DType::kF32) {
  Collective collective;
  collective.kind = kind;
  collective.input = Buffer(storage, input, dtype);
  collective.output = Buffer(storage, output, dtype);
  return collective;
}

// Applies `combines` to texts, as a kernel does to values.
std::string Tree(const CollectiveArgs& args, int size) {
  std::vector<std::string> waiting;
  for (int k = 0; k < size; ++k) {
    waiting.push_back(std::string(1, static_cast<char>('a' + k)));
    for (int n = args.combines[k]; n > 0; --n) {
      const std::string right = waiting.back();
      waiting.pop_back();
      waiting.back() = "(" + waiting.back() + right + ")";
    }
  }
  REQUIRE(waiting.size() == 1);
  return waiting[0];
}

TEST_CASE("inputs are combined in the tree of ops/reduce") {
  const auto tree = [](int size) {
    return Tree(MakePlan(Of(CollectiveKind::kAllReduce, 8, 8), 0, size, kBlocks).args, size);
  };
  CHECK(tree(1) == "a");
  CHECK(tree(2) == "(ab)");
  CHECK(tree(3) == "((ab)c)");
  CHECK(tree(5) == "(((ab)c)(de))");
  CHECK(tree(8) == "(((ab)(cd))((ef)(gh)))");
}

TEST_CASE("calls that agree have equal blocks and signatures and other calls other signatures") {
  Collective call = Of(CollectiveKind::kAllGather, 1000, 4000);
  const Plan equal = MakePlan(call, 0, 4, kBlocks);
  call.receive_counts = {1000, 1000, 1000, 1000};
  const Plan given = MakePlan(call, 3, 4, kBlocks);
  CHECK(given.blocks == equal.blocks);
  CHECK(given.args.signature == equal.args.signature);
  call.receive_counts = {1000, 1000, 1000, 999};
  CHECK(MakePlan(call, 0, 4, kBlocks).args.signature != equal.args.signature);

  // The counts that a rank sends to itself are not part of the agreement.
  Collective uneven = Of(CollectiveKind::kAllToAll, 100'000, 100'000);
  uneven.send_counts = {99'999, 1};
  uneven.receive_counts = {99'999, 1};
  const Collective tiny = Of(CollectiveKind::kAllToAll, 2, 2);
  CHECK(MakePlan(uneven, 0, 2, kBlocks).blocks == MakePlan(tiny, 1, 2, kBlocks).blocks);
  CHECK(
      MakePlan(uneven, 0, 2, kBlocks).args.signature ==
      MakePlan(tiny, 1, 2, kBlocks).args.signature);

  Collective sum = Of(CollectiveKind::kAllReduce, 8, 8);
  const uint64_t signature = MakePlan(sum, 0, 2, kBlocks).args.signature;
  sum.scale.after = 0.5;
  CHECK(MakePlan(sum, 0, 2, kBlocks).args.signature != signature);
  sum.scale.after = 1;
  sum.op = ReduceOp::kMax;
  CHECK(MakePlan(sum, 0, 2, kBlocks).args.signature != signature);
}

}  // namespace
}  // namespace dtrun::ops::cuda
