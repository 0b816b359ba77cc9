// The plans of parameter servers: the layout of variables, the queue of steps and the staleness
// bound.

#include <catch2/catch.hpp>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "dtrun/error.h"
#include "runtime/parameter_server/server_plan.h"

namespace {

using namespace dtrun::runtime;
using dtrun::Buffer;

float storage[4096];

Tensor Variable(const std::string& name, const Shape& shape) {
  uint64_t count = 1;
  for (const uint64_t extent : shape) count *= extent;
  return {name, Buffer(storage, count), shape};
}

PartitionRule AtLeast(uint64_t bytes) { return {PartitionRule::Kind::kMinSize, bytes}; }

std::string ErrorOf(const std::vector<Tensor>& variables) {
  try {
    PlanVariables(variables, 1, AtLeast(1024));
  } catch (const dtrun::Error& error) {
    CHECK(error.code() == dtrun::ErrorCode::kInvalidArgument);
    return error.what();
  }
  return "accepted";
}

TEST_CASE("small variables are dealt round-robin without a cut") {
  const VariableLayout layout = PlanVariables(
      {Variable("a", {3, 5}), Variable("b", {7}), Variable("c", {}), Variable("d", {2})}, 2,
      AtLeast(1024));
  REQUIRE(layout.shards.size() == 4);
  for (size_t i = 0; i < 4; ++i) {
    CHECK(layout.shards[i].variable == i);
    CHECK(layout.shards[i].server == static_cast<int>(i % 2));
    CHECK(layout.shards[i].first == 0);
    CHECK(layout.shards[i].parts == 1);
    CHECK(layout.shards[i].offset % 64 == 0);
  }
  CHECK(layout.shards[0].count == 15);
  CHECK(layout.shards[2].count == 1);
  CHECK(layout.OfServer(1) == std::vector<VariableShard>{layout.shards[1], layout.shards[3]});
  CHECK(layout.block_bytes() == 2 * 4 * 64);
}

TEST_CASE("a large variable is cut along its first axis and the first parts get one row more") {
  const VariableLayout layout = PlanVariables({Variable("w", {13, 4})}, 5, AtLeast(8));
  std::vector<uint64_t> rows, firsts;
  for (const VariableShard& shard : layout.shards) {
    rows.push_back(shard.count / 4);
    firsts.push_back(shard.first / 4);
    CHECK(shard.offset == shard.first * sizeof(float));
    CHECK(shard.server == shard.part);
  }
  CHECK(rows == std::vector<uint64_t>{3, 3, 3, 2, 2});
  CHECK(firsts == std::vector<uint64_t>{0, 3, 6, 9, 11});
}

TEST_CASE("no part is smaller than the minimum or smaller than a row") {
  CHECK(PlanVariables({Variable("w", {13, 4})}, 5, AtLeast(100)).shards.size() == 2);  // 208 bytes
  CHECK(PlanVariables({Variable("w", {13, 4})}, 5, AtLeast(105)).shards.size() == 1);
  CHECK(PlanVariables({Variable("w", {2, 64})}, 5, AtLeast(8)).shards.size() == 2);
  CHECK(PlanVariables({Variable("w", {0, 64})}, 5, AtLeast(8)).shards.size() == 1);
}

TEST_CASE("parts have at most the size that the rule allows and at least one row") {
  const auto parts = [](const Shape& shape, uint64_t bytes) {
    return PlanVariables({Variable("w", shape)}, 2, {PartitionRule::Kind::kMaxSize, bytes})
        .shards.size();
  };
  CHECK(parts({13, 4}, 208) == 1);  // 208 bytes
  CHECK(parts({13, 4}, 207) == 2);
  CHECK(parts({13, 4}, 50) == 5);  // more than there are servers
  CHECK(parts({3, 64}, 8) == 3);
  CHECK(parts({}, 1) == 1);
}

TEST_CASE("a fixed number of parts holds for each variable with enough rows") {
  const VariableLayout layout = PlanVariables(
      {Variable("w", {13, 4}), Variable("b", {2})}, 2, {PartitionRule::Kind::kFixedShards, 3});
  std::vector<uint64_t> counts;
  std::vector<int> servers;
  for (const VariableShard& shard : layout.shards) {
    counts.push_back(shard.count);
    servers.push_back(shard.server);
  }
  CHECK(counts == std::vector<uint64_t>{20, 16, 16, 1, 1});
  CHECK(servers == std::vector<int>{0, 1, 0, 1, 0});
}

TEST_CASE("invalid variables are refused by name") {
  CHECK(ErrorOf({}) == "there are no variables for the parameter servers");
  CHECK(ErrorOf({Variable("a", {2}), Variable("a", {2})}).find("'a'") != std::string::npos);
  Tensor wrong = Variable("b", {2, 3});
  wrong.shape = {7};
  CHECK(ErrorOf({wrong}).find("'b'") != std::string::npos);
}

TEST_CASE("each step goes to one worker in order and the queue is over after the last step") {
  StepQueue queue(3, 6, UINT64_MAX);
  CHECK(queue.Take(1) == 3);
  CHECK(queue.Take(2) == 4);
  queue.Done(1);
  CHECK(queue.done() == 4);
  CHECK(queue.Take(1) == 5);
  queue.Done(1);
  CHECK(queue.Take(1) == std::nullopt);
  CHECK_FALSE(queue.over());
  queue.Done(2);
  CHECK(queue.over());
  CHECK(queue.done() == 6);
  CHECK(StepQueue(4, 4, 1).over());
}

TEST_CASE("the step of a lost worker goes to the next worker that asks") {
  StepQueue queue(0, 3, UINT64_MAX);
  queue.Take(1);
  queue.Take(2);
  CHECK(queue.Lose(1) == 0);
  CHECK(queue.Lose(1) == std::nullopt);
  queue.Done(2);
  CHECK(queue.Take(2) == 0);
  queue.Done(2);
  CHECK(queue.Take(2) == 2);
  queue.Done(2);
  CHECK(queue.over());
  CHECK(queue.repeated() == 1);
  CHECK(queue.done() == 3);
}

TEST_CASE("the number of steps in flight is limited") {
  StepQueue queue(0, 9, 2);
  queue.Take(1);
  queue.Take(2);
  CHECK(queue.Take(3) == std::nullopt);
  queue.Done(1);
  CHECK(queue.Take(3) == 2);
}

TEST_CASE("staleness counts the updates applied since the worker began") {
  StalenessGate gate;
  gate.Begin(1);
  gate.Begin(2);
  CHECK(gate.Apply(1) == 0);
  gate.Begin(1);
  CHECK(gate.Apply(1) == 0);
  CHECK(gate.Apply(2) == 2);
  CHECK(gate.version() == 3);
  CHECK(gate.histogram() == std::vector<uint64_t>{2, 0, 1});
}

TEST_CASE("a gradient waits for another gradient that would become too stale") {
  StalenessGate gate(1);
  gate.Begin(1);
  gate.Begin(2);
  CHECK(gate.MayApply(1));
  gate.Apply(1);
  gate.Begin(1);
  CHECK_FALSE(gate.MayApply(1));  // then worker 2 would have staleness 2
  CHECK(gate.MayApply(2));
  SECTION("until the other gradient is applied") { CHECK(gate.Apply(2) == 1); }
  SECTION("until the other worker is lost") { gate.Forget(2); }
  CHECK(gate.MayApply(1));
}

// Workers of every speed in any order. At most bound + 1 steps are in flight.
TEST_CASE("in any order no gradient exceeds the staleness bound and no deadlock occurs") {
  std::mt19937 random(7);
  for (const uint64_t bound : {0u, 1u, 2u, 5u}) {
    StalenessGate gate(bound);
    std::set<int> out, waiting;
    for (int i = 0; i < 20'000; ++i) {
      const int worker = static_cast<int>(random() % 8);
      if (out.count(worker) == 0 && out.size() <= bound) {
        gate.Begin(worker);
        out.insert(worker);
      } else if (out.count(worker) > 0 && random() % 50 == 0) {
        gate.Forget(worker);
        out.erase(worker);
        waiting.erase(worker);
      } else if (out.count(worker) > 0) {
        waiting.insert(worker);
      }
      bool applied = true;
      while (applied) {
        applied = false;
        for (const int each : std::set<int>(waiting)) {
          if (!gate.MayApply(each)) continue;
          REQUIRE(gate.Apply(each) <= bound);
          waiting.erase(each);
          out.erase(each);
          applied = true;
        }
      }
      REQUIRE((waiting.empty() || waiting.size() < out.size()));  // otherwise a deadlock
    }
    CHECK(gate.version() > 1000);
    CHECK(gate.histogram().size() == bound + 1);
  }
}

}  // namespace
