#include "runtime/gradient_reducer.h"

#include <catch2/catch.hpp>
#include <cstring>

#include "base/text.h"
#include "dtrun/error.h"
#include "ops/engine.h"
#include "ops/self/self_communicator.h"
#include "ops/shm/shm_communicator.h"
#include "tests/support/thread_ranks.h"

namespace {

using dtrun::Buffer;
using dtrun::DType;
using dtrun::ReduceOp;
using dtrun::base::Text;
using dtrun::runtime::BucketPlan;
using dtrun::runtime::Gradient;
using dtrun::runtime::GradientReducer;
using dtrun::runtime::PlanBuckets;
using Calls = std::vector<std::string>;

// A Communicator of one rank that writes down its calls.
class RecordingCommunicator : public dtrun::ops::Communicator {
 public:
  explicit RecordingCommunicator(Calls& calls)
      : Communicator(dtrun::ops::Members::World(1)), calls_(calls) {}
  int rank() const override { return 0; }
  int size() const override { return 1; }
  const char* backend() const override { return "recording"; }
  std::unique_ptr<dtrun::ops::Memory> Allocate(uint64_t bytes) override {
    return dtrun::ops::AllocatePrivate(bytes);
  }
  std::unique_ptr<Communicator> Duplicate() override {
    return std::make_unique<RecordingCommunicator>(calls_);
  }
  std::unique_ptr<Communicator> Create(
      dtrun::ops::Bootstrap&, const std::vector<int>&, dtrun::ops::Members) override {
    return Duplicate();
  }

 protected:
  dtrun::ops::Work StartChecked(dtrun::ops::Collective collective) override {
    if (collective.kind == dtrun::ops::CollectiveKind::kAllGather) {
      std::memcpy(collective.output.data, collective.input.data, collective.input.bytes());
    } else {
      calls_.push_back(Text(dtrun::ops::NameOf(collective.kind), " ", collective.input.count));
    }
    return {};
  }

 private:
  Calls& calls_;
};

Gradient Placed(uint64_t count, DType dtype = DType::kF32) {
  return {"g", Buffer(nullptr, count, dtype)};
}

TEST_CASE("buckets go through the gradients from the last layer to the first") {
  const BucketPlan plan = PlanBuckets({{"a", 4}, {"b", 4}, {"c", 64}}, 256);
  REQUIRE(plan.buckets.size() == 2);
  CHECK(plan.buckets[0].gradients == std::vector<size_t>{2});
  CHECK(plan.buckets[1].gradients == std::vector<size_t>{1, 0});
  // Each gradient starts on a cache line, and the padding is a part of its bucket.
  CHECK(plan.offsets == std::vector<uint64_t>{320, 256, 0});
  CHECK(plan.buckets[1].count == 32);
  CHECK(plan.block_bytes == 384);
}

TEST_CASE("a bucket holds one dtype") {
  const BucketPlan plan = PlanBuckets({{"a", 4}, {"b", 4, DType::kBF16}, {"c", 4}}, 1 << 20);
  REQUIRE(plan.buckets.size() == 3);
  CHECK(plan.buckets[1].dtype == DType::kBF16);
}

TEST_CASE("no gradients are no buckets") { CHECK(PlanBuckets({}, 1024).buckets.empty()); }

TEST_CASE("a bucket is started only after the buckets before it") {
  Calls calls;
  RecordingCommunicator comm(calls);
  GradientReducer reducer(comm, {Placed(16), Placed(32)}, ReduceOp::kSum, 64);
  reducer.MarkReady(0);  // in the second bucket: backward runs from the last layer
  CHECK(calls.empty());
  reducer.MarkReady(1);
  CHECK(calls == Calls{"all_reduce 32", "all_reduce 16"});
  reducer.Wait();
  CHECK(calls.size() == 2);
}

TEST_CASE("the wait reduces what nobody marked, and the next step starts anew") {
  Calls calls;
  RecordingCommunicator comm(calls);
  GradientReducer reducer(comm, {Placed(16), Placed(32)}, ReduceOp::kSum, 64);
  for (int step = 0; step < 2; ++step) {
    reducer.MarkReady(1);
    reducer.Wait();
  }
  CHECK(calls == Calls{"all_reduce 32", "all_reduce 16", "all_reduce 32", "all_reduce 16"});
}

TEST_CASE("a gradient marked twice, or one that does not exist, is an error that says what to do") {
  Calls calls;
  RecordingCommunicator comm(calls);
  GradientReducer reducer(
      comm, {{"conv/kernel", Buffer(nullptr, 16, DType::kF32)}}, ReduceOp::kSum, 64);
  reducer.MarkReady(0);
  CHECK_THROWS_WITH(
      reducer.MarkReady(0),
      "gradient 0 'conv/kernel' f32[16] was marked ready twice; call Wait() (or Step()) before the "
      "next backward "
      "pass");
  CHECK_THROWS_WITH(reducer.MarkReady(1), "gradient 1 does not exist; the reducer has 1");
}

// What each of `size` ranks threw.
std::vector<std::string> RunShm(
    int size, const std::function<void(dtrun::ops::Communicator&)>& rank_main) {
  const dtrun::base::SteadyClock clock;
  return dtrun::testing::RunRanks(size, [&](dtrun::ops::Bootstrap& bootstrap) {
    dtrun::ops::Engine engine({.may_spin = false}, clock, [](auto, const auto&) {});
    rank_main(*dtrun::ops::CreateShmCommunicator(
        bootstrap, engine, dtrun::ops::Members::World(bootstrap.size())));
  });
}

TEST_CASE("placed and packed gradients of several types come back averaged over the ranks") {
  const int size = GENERATE(1, 2, 3);
  CHECK(RunShm(size, [&](dtrun::ops::Communicator& comm) {
          std::vector<double> packed(3000);
          GradientReducer reducer(
              comm, {Placed(100'000), {"packed", Buffer(packed.data(), packed.size())}, Placed(5)},
              ReduceOp::kAverage, 64 << 10);
          const double mean = 1 + (size - 1) / 2.0;
          for (int step = 0; step < 3; ++step) {
            for (const size_t i : {0u, 2u}) {
              const Buffer gradient = reducer.gradient(i);
              for (uint64_t k = 0; k < gradient.count; ++k) {
                static_cast<float*>(gradient.data)[k] = static_cast<float>(comm.rank() + 1);
              }
            }
            packed.assign(packed.size(), comm.rank() + 1);
            for (const size_t i : {2u, 1u, 0u}) reducer.MarkReady(i);
            reducer.Wait();
            const auto close = [mean](double value) { return std::abs(value - mean) < 1e-6; };
            if (!close(static_cast<float*>(reducer.gradient(0).data)[99'999]) ||
                !close(packed[2999]) || !close(static_cast<float*>(reducer.gradient(2).data)[4])) {
              throw std::runtime_error("wrong average");
            }
          }
        }) == std::vector<std::string>(static_cast<size_t>(size)));
}

TEST_CASE(
    "different models on the ranks: all get an error that names the first gradient that differs") {
  const auto errors = RunShm(3, [](dtrun::ops::Communicator& comm) {
    std::vector<Gradient> gradients = {
        {"conv/kernel", Buffer(nullptr, 288, DType::kF32)},
        {"dense/kernel", Buffer(nullptr, comm.rank() == 1 ? 32 : 64, DType::kF32)}};
    GradientReducer(comm, gradients, ReduceOp::kSum, 1024);
  });
  CHECK(
      errors == std::vector<std::string>(
                    3,
                    "the ranks have different gradients to reduce: gradient 1 is 'dense/kernel' "
                    "f32[32] on rank 1, "
                    "'dense/kernel' f32[64] on ranks 0 and 2"));
}

TEST_CASE("one rank with a gradient more is named as well") {
  const auto errors = RunShm(2, [](dtrun::ops::Communicator& comm) {
    std::vector<Gradient> gradients = {Placed(1)};
    if (comm.rank() == 1) gradients.push_back({"extra", Buffer(nullptr, 2, DType::kF64)});
    GradientReducer(comm, gradients, ReduceOp::kSum, 1024);
  });
  CHECK(
      errors[0] ==
      "the ranks have different gradients to reduce: gradient 1 is 'extra' f64[2] on rank 1, none "
      "on rank 0");
  CHECK(errors[1] == errors[0]);
}

}  // namespace
