// Strategies over ranks that are threads of this process, on one host or on several hosts by name.

#include <dtrun/strategies.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "tests/runtime/sharded_ranks.h"

namespace dtrun::testing {
namespace {

using Catch::Matchers::Contains;
using Floats = std::vector<float>;

// The hosts of OnRanks: one host with all ranks, or hosts with two ranks each.
std::vector<Host> HostsOf(int size, Backend backend) {
  std::vector<Host> hosts;
  if (backend != Backend::kHosts) return {{"h0", size}};
  for (int first = 0; first < size; first += 2)
    hosts.push_back({"h" + std::to_string(first / 2), std::min(2, size - first)});
  return hosts;
}

// Runs `rank_main` with the strategy on each rank. Returns the error of each rank.
Texts OnReplicas(
    int size, Backend backend, const std::string& spec,
    const std::function<void(Strategy&)>& rank_main) {
  return OnRanks(size, backend, [&](Communicator& world) {
    const StrategyJob job(world, HostsOf(size, backend));
    rank_main(*MakeStrategy(job, spec));
  });
}

// Runs OnReplicas for every strategy that accepts `size` ranks on `backend`.
void OnEachStrategy(int size, Backend backend, const std::function<void(Strategy&)>& rank_main) {
  for (const std::string& name : StrategyNames()) {
    if (name == "parameter_server") continue;  // refused
    if (size > 1 && (name == "default" || name == "one_device")) continue;
    if (backend == Backend::kHosts && size > 2 && name == "mirrored") continue;
    CAPTURE(name, size);
    CHECK(OnReplicas(size, backend, name, rank_main) == Nothing(size));
  }
}

template <typename Body>
std::string Refusal(const Body& body) {
  try {
    body();
  } catch (const Error& error) {
    return std::to_string(static_cast<int>(error.code())) + " " + error.what();
  }
  return "";
}

template <typename Body>
std::string RefusalText(const Body& body) {
  const std::string refusal = Refusal(body);
  return refusal.empty() ? "" : refusal.substr(2);
}

TEST_CASE("a mean over an axis divides by the real number of examples") {
  OnEachStrategy(2, Backend::kShm, [](Strategy& strategy) {
    const bool first = strategy.is_chief();
    const Value<float> losses =
        first ? Value<float>(Floats{1, 1, 1, 1}) : Value<float>(Floats{4, 4});
    Expect(strategy.Reduce(ReduceOp::kAverage, losses, 0).number() == 2, "12 / 6");
    Expect(strategy.Reduce(ReduceOp::kSum, losses, 0).number() == 12, "the sum");
    const Value<int64_t> count(first ? 4 : 2);
    Expect(strategy.Reduce(ReduceOp::kSum, count).number() == 6, "the examples");
    Expect(strategy.Reduce(ReduceOp::kAverage, count).number() == 3, "per replica");
  });
}

TEST_CASE("any axis can be reduced and gathered with different extents on the ranks") {
  OnEachStrategy(3, Backend::kShm, [](Strategy& strategy) {
    const int r = strategy.replicas().rank();
    // (2, r, 2), the numbers 100 r + 0, 1, ...
    Value<int32_t> value({}, {2, 0, 2});
    value.shape[1] = static_cast<uint64_t>(r);
    for (int32_t i = 0; i < 4 * r; ++i) value.data.push_back(100 * r + i);
    const Value<int32_t> sum = strategy.Reduce(ReduceOp::kSum, value, 1);
    Expect(sum.shape == std::vector<uint64_t>{2, 2}, "an axis less");
    Expect(sum.data == std::vector<int32_t>{502, 505, 512, 515}, "the sums");
    const Value<int32_t> all = strategy.Gather(value, 1);
    Expect(all.shape == std::vector<uint64_t>{2, 3, 2}, "the axes of all");
    Expect(
        all.data ==
            std::vector<int32_t>{100, 101, 200, 201, 202, 203, 102, 103, 204, 205, 206, 207},
        "in rank order along the axis");
    Expect(strategy.LocalResults(value).size() == 1, "a replica per rank");
  });
}

TEST_CASE("values that do not match are the same error on all replicas") {
  CHECK(
      OnReplicas(2, Backend::kShm, "mirrored", [](Strategy& strategy) {
        const bool first = strategy.is_chief();
        const auto refused = [](const std::string& text, const auto& body) {
          Expect(RefusalText(body) == text, text + ", not " + RefusalText(body));
        };
        refused(
            "reduce: replica 0 has a sum of f32(3, 2) over axis 0, replica 1 a sum of f32(3, 1) "
            "over axis 0",
            [&] {
              strategy.Reduce(
                  ReduceOp::kSum,
                  first ? Value<float>(Floats(6), {3, 2}) : Value<float>(Floats(3), {3, 1}), 0);
            });
        refused("reduce: axis 1 of values of the shape (2); expected one of its 1 dimensions", [&] {
          strategy.Reduce(ReduceOp::kSum, Value<float>(Floats{1, 2}), 1);
        });
        refused("gather: axis 0 of values of the shape (); expected one of its 0 dimensions", [&] {
          strategy.Gather(Value<float>(1), 0);
        });
        refused("reduce: the op is max; expected sum or average", [&] {
          strategy.Reduce(ReduceOp::kMax, Value<float>(1));
        });
        refused("reduce: the mean over axis 0: found no elements on any replica", [&] {
          strategy.Reduce(ReduceOp::kAverage, Value<float>(Floats{}), 0);
        });
        // The communicator stays usable.
        Expect(strategy.Reduce(ReduceOp::kSum, Value<float>(1)).number() == 2, "the next one");
      }) == Nothing(2));
}

TEST_CASE("run calls a function once per replica and passes the context if the function takes it") {
  OnEachStrategy(1, Backend::kShm, [](Strategy& strategy) {
    Expect(strategy.Run([](int a, int b) { return a + b; }, 1, 2) == 3, "plain");
  });
  OnEachStrategy(3, Backend::kShm, [](Strategy& strategy) {
    const float total = strategy.Run(
        [](ReplicaContext& replica, float factor) {
          const auto mine = static_cast<float>(replica.replica_id_in_sync_group());
          Expect(replica.num_replicas_in_sync() == 3, "three replicas");
          return replica.AllReduce(ReduceOp::kSum, Value<float>(factor * mine)).number();
        },
        2.0f);
    Expect(total == 6, "2 (0 + 1 + 2)");
  });
}

TEST_CASE("variables synchronised on write have the same value on all replicas") {
  const int size = GENERATE(1, 2, 3, 5);
  const Backend backend = size < 3 ? Backend::kShm : GENERATE(Backend::kShm, Backend::kHosts);
  OnEachStrategy(size, backend, [size](Strategy& strategy) {
    const auto rank = static_cast<float>(strategy.replicas().rank());
    StrategyScope scope = strategy.Scope();
    Variable<float> sum =
        scope.MakeVariable<float>("sum", {rank + 7, 8}, {.aggregation = VariableAggregation::kSum});
    Expect(sum.Read() == Floats{7, 8}, "the chief's");
    sum.Assign({rank, 1});
    const auto n = static_cast<float>(size);
    Expect(sum.Read() == Floats{n * (n - 1) / 2, n}, "the sums");
    sum.AssignAdd({0, 1});
    sum.AssignSub({0, 2});
    Expect(sum.Read()[1] == 0, "what all add and subtract");
    Variable<float> mean =
        scope.MakeVariable<float>("mean", {0}, {.aggregation = VariableAggregation::kMean});
    mean.Assign({rank});
    Expect(mean.Read() == Floats{(n - 1) / 2}, "the mean");
    Variable<int32_t> step = scope.MakeVariable<int32_t>(
        "step", {0}, {.aggregation = VariableAggregation::kOnlyFirstReplica});
    step.AssignAdd({strategy.replicas().rank() + 1});
    Expect(step.Read() == std::vector<int32_t>{1}, "the first replica's");
    Variable<float> plain = scope.MakeVariable<float>("plain", {3});
    Expect(
        RefusalText([&] { plain.Assign({rank}); }) ==
            "variable 'plain': assign combines the values of all replicas, but the "
            "aggregation is none; expected sum, mean or only_first_replica",
        "no aggregation");
    plain.Set({5});
    Expect(plain.Read() == Floats{5}, "set");
    Expect(
        RefusalText([&] {
          plain.Set({1, 2});
        }) == "variable 'plain' has 1 numbers; found 2",
        "another count");
    Expect(
        RefusalText([&] { scope.MakeVariable<float>("plain", {1}); }) ==
            "variable 'plain' exists already; expected a new name",
        "the name");
  });
}

TEST_CASE("variables synchronised on read differ between replicas until they are read") {
  const Backend backend = GENERATE(Backend::kShm, Backend::kHosts);
  OnEachStrategy(4, backend, [](Strategy& strategy) {
    const int64_t rank = strategy.replicas().rank();
    StrategyScope scope = strategy.Scope();
    const VariableOptions metric{VariableSynchronization::kOnRead, VariableAggregation::kSum};
    Variable<int64_t> seen = scope.MakeVariable<int64_t>("seen", {10}, metric);
    Expect(seen.Read() == std::vector<int64_t>{10}, "once, not four times");
    seen.AssignAdd({rank});
    Expect(seen.data()[0] == rank + (rank == 0 ? 10 : 0), "its own");
    Expect(seen.Read() == std::vector<int64_t>{16}, "all together");
    Expect(seen.Read() == std::vector<int64_t>{16}, "reading changes nothing");
    seen.Set({7});
    Expect(seen.Read() == std::vector<int64_t>{7}, "as from a checkpoint");
    Variable<float> rate = scope.MakeVariable<float>(
        "rate", {1}, {VariableSynchronization::kOnRead, VariableAggregation::kMean});
    rate.Assign({static_cast<float>(rank)});
    Expect(rate.Read() == Floats{1.5f}, "the mean");
  });
}

TEST_CASE("central storage keeps one copy of a variable per host") {
  std::vector<const float*> places(4);
  CHECK(OnReplicas(4, Backend::kHosts, "central_storage", [&](Strategy& strategy) {
          Variable<float> variable = strategy.Scope().MakeVariable<float>("v", {1});
          places[static_cast<size_t>(strategy.replicas().rank())] = variable.data();
          strategy.replicas().Barrier();
        }) == Nothing(4));
  // Ranks that are threads map a segment at the same address.
  CHECK(places[0] == places[1]);
  CHECK(places[2] == places[3]);
  CHECK(places[0] != places[2]);
}

TEST_CASE("a strategy that cannot be made is the same error with advice on all ranks") {
  const auto refusals = [](int size, Backend backend, const std::string& spec) {
    return OnReplicas(size, backend, spec, [](Strategy&) {});
  };
  const auto on_all = [](int size, const std::string& text) {
    return Texts(static_cast<size_t>(size), text);
  };
  CHECK(
      refusals(4, Backend::kHosts, "mirrored") ==
      on_all(
          4,
          "strategy mirrored: the ranks are on 2 hosts (h0, h1); expected one; use "
          "multi_worker_mirrored"));
  CHECK(
      refusals(2, Backend::kShm, "one_device:cpu") ==
      on_all(
          2,
          "strategy one_device: found 2 ranks; expected 1: start the program by itself, or use "
          "mirrored"));
  CHECK_THAT(refusals(3, Backend::kShm, "default")[2], Contains("strategy default: found 3 ranks"));
  CHECK(
      refusals(2, Backend::kShm, "mirrord") ==
      on_all(
          2,
          "strategy 'mirrord' is unknown; expected one of default, one_device, mirrored, "
          "multi_worker_mirrored, central_storage, parameter_server"));
  CHECK(
      refusals(2, Backend::kShm, "tpu") == on_all(
                                               2,
                                               "strategy tpu: there are no TPUs here; use mirrored "
                                               "(one host) or multi_worker_mirrored"));
  CHECK(
      refusals(2, Backend::kShm, "mirrored:cpu") ==
      on_all(
          2,
          "strategy mirrored: found 1 devices and 2 ranks on host h0; expected one for each "
          "rank (dtrun -np 1)"));
  CHECK(
      refusals(3, Backend::kHosts, "central_storage:cpu,cpu") ==
      on_all(
          3,
          "rank 2: strategy central_storage: found 2 devices and 1 ranks on host h1; expected "
          "one for each rank (dtrun -np 2)"));
  CHECK(refusals(2, Backend::kShm, "mirrored:cpu,/cpu:0") == Nothing(2));
  CHECK(
      refusals(1, Backend::kShm, "one_device:gpuu") ==
      on_all(1, "device 'gpuu'; expected cpu or cuda:N"));
  CHECK_THAT(
      refusals(1, Backend::kShm, "one_device:cuda:0")[0],
      Contains("device cuda:0: ") && Contains("; use cpu"));
  CHECK(
      refusals(1, Backend::kShm, "one_device:cpu,cpu") ==
      on_all(1, "strategy one_device: takes one device, found 'one_device:cpu,cpu'"));
  CHECK(
      refusals(1, Backend::kShm, "default:cpu,cpu") ==
      on_all(1, "strategy default: takes one device, found 'default:cpu,cpu'"));
  CHECK(
      OnRanks(
          2, Backend::kShm,
          [](Communicator& world) {
            MakeStrategy({world, {{"h", 2}}}, world.rank() == 0 ? "mirrored" : "central_storage");
          }) ==
      on_all(
          2, "the ranks have different strategies: central_storage on rank 1; mirrored on rank 0"));
}

TEST_CASE("replicas that choose different ways to sum gradients on GPUs get the same error") {
  const std::string text =
      "the ranks have different ways to sum gradients on GPUs: host_staged on rank 1; nccl on rank "
      "0";
  CHECK(OnRanks(2, Backend::kShm, [](Communicator& world) {
          MirroredStrategy strategy({world, {{"h", 2}}});
          strategy.UseCrossDeviceOps(
              world.rank() == 0 ? CrossDeviceOps::kNccl : CrossDeviceOps::kReductionToOneDevice);
        }) == Texts(2, text));
}

TEST_CASE("device names of dtrun and of TensorFlow are parsed") {
  CHECK(ParseDevice("cpu") == Device{});
  CHECK(ParseDevice("/cpu:0") == Device{});
  CHECK(ParseDevice("/device:GPU:1") == Device{DeviceKind::kCuda, 1});
  CHECK(ParseDevice("cuda:3").name() == "cuda:3");
  CHECK(Refusal([] {
          CheckDevice(ParseDevice("TPU:0"));
        }) == "5 device tpu:0: there are no TPUs here; use cpu");
  for (const char* none : {"", "cpu:", "cuda:x", "cuda:-1", "cuda:123456", "disk", ":0"}) {
    CAPTURE(none);
    CHECK(Refusal([&] {
            ParseDevice(none);
          }) == "1 device '" + std::string(none) + "'; expected cpu or cuda:N");
  }
}

}  // namespace
}  // namespace dtrun::testing
