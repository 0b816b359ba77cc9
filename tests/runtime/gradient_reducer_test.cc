#include "runtime/gradient_reducer.h"

#include <algorithm>
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
using dtrun::runtime::AppendFlags;
using dtrun::runtime::BucketPlan;
using dtrun::runtime::FlagPlan;
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

TEST_CASE("without a bucket size it is a sixteenth of the gradients, within limits") {
  const auto size = [](uint64_t mib_64ths, bool within_one_host) {
    return dtrun::runtime::AutoBucketBytes(
        {{"a", mib_64ths << 12, DType::kF32}, {"b", mib_64ths << 11, DType::kF64}},
        within_one_host);
  };
  // In all: twice as many 64ths of a MiB.
  CHECK(size(1, false) == 64 << 10);
  CHECK(size(1, true) == 1 << 20);
  CHECK(size(64, false) == 128 << 10);
  CHECK(size(64, true) == 1 << 20);
  CHECK(size(1024, false) == 2 << 20);
  CHECK(size(1024, true) == 2 << 20);
  CHECK(size(100'000, false) == 4 << 20);
  CHECK(dtrun::runtime::AutoBucketBytes({}, true) == 1 << 20);
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

TEST_CASE("a large gradient has a bucket of its own, without padding, and flags have another") {
  BucketPlan plan = PlanBuckets({{"a", 262'145}, {"b", 4}, {"c", 262'144}, {"d", 4}}, 4096);
  REQUIRE(plan.buckets.size() == 4);
  CHECK(plan.buckets[0].gradients == std::vector<size_t>{3});
  CHECK(plan.buckets[1].gradients == std::vector<size_t>{2});
  CHECK(plan.buckets[1].is_single);
  CHECK_FALSE(plan.buckets[2].is_single);
  CHECK(plan.buckets[3].count == 262'145);
  AppendFlags(plan);
  CHECK(plan.buckets.size() == 5);
  CHECK(plan.buckets[3].count == 262'145);
}

TEST_CASE("a bucket holds one dtype") {
  const BucketPlan plan = PlanBuckets({{"a", 4}, {"b", 4, DType::kBF16}, {"c", 4}}, 1 << 20);
  REQUIRE(plan.buckets.size() == 3);
  CHECK(plan.buckets[1].dtype == DType::kBF16);
}

TEST_CASE("no gradients are no buckets") {
  BucketPlan plan = PlanBuckets({}, 1024);
  AppendFlags(plan);
  CHECK(plan.buckets.empty());
}

TEST_CASE("the flags are a part of the last bucket, however full, if that holds floats") {
  BucketPlan plan = PlanBuckets({{"a", 4}, {"b", 4}, {"c", 64}}, 128);
  const auto buckets = plan.buckets.size();
  const FlagPlan flags = AppendFlags(plan);
  CHECK(flags.offset == 384);
  CHECK(plan.buckets.size() == buckets);
  CHECK(plan.buckets.back().count == 48);

  BucketPlan counts = PlanBuckets({{"steps", 4, DType::kI64}, {"w", 4, DType::kF64}}, 1024);
  CHECK(AppendFlags(counts).dtype == DType::kF32);
  REQUIRE(counts.buckets.size() == 3);
  CHECK(counts.buckets[2].count == 16);
}

TEST_CASE("a bucket is started only after the buckets before it") {
  Calls calls;
  RecordingCommunicator comm(calls);
  GradientReducer reducer(comm, {Placed(16), Placed(32)}, {ReduceOp::kSum, 64});
  reducer.MarkReady(0);  // in the second bucket: backward runs from the last layer
  CHECK(calls.empty());
  reducer.MarkReady(1);
  // The second one with the flags behind it.
  CHECK(calls == Calls{"all_reduce 32", "all_reduce 32"});
  reducer.Wait();
  CHECK(calls.size() == 2);
}

TEST_CASE("the wait reduces what nobody marked, and the next step starts anew") {
  Calls calls;
  RecordingCommunicator comm(calls);
  GradientReducer reducer(comm, {Placed(16), Placed(32)}, {ReduceOp::kSum, 64});
  for (int step = 0; step < 2; ++step) {
    reducer.MarkReady(1);
    reducer.Wait();
  }
  CHECK(calls == Calls{"all_reduce 32", "all_reduce 32", "all_reduce 32", "all_reduce 32"});
}

TEST_CASE("a gradient marked twice, or one that does not exist, is an error that says what to do") {
  Calls calls;
  RecordingCommunicator comm(calls);
  GradientReducer reducer(
      comm, {{"conv/kernel", Buffer(nullptr, 16, DType::kF32)}}, {ReduceOp::kSum, 64});
  reducer.MarkReady(0);
  CHECK_THROWS_WITH(
      reducer.MarkReady(0),
      "gradient 0 'conv/kernel' f32[16] was marked ready twice; call Wait() (or Step()) before the "
      "next backward "
      "pass");
  const std::string twice = "was marked ready twice";
  CHECK_THROWS_WITH(reducer.MarkReadyFrom(0, nullptr), Catch::Contains(twice));
  CHECK_THROWS_WITH(reducer.MarkUnused(0), Catch::Contains(twice));
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
          std::vector<double> packed(300'000);  // large: reduced where it is
          GradientReducer reducer(
              comm, {Placed(100'000), {"packed", Buffer(packed.data(), packed.size())}, Placed(5)},
              {ReduceOp::kAverage, 64 << 10});
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
                !close(packed[299'999]) ||
                !close(static_cast<float*>(reducer.gradient(2).data)[4])) {
              throw std::runtime_error("wrong average");
            }
          }
        }) == std::vector<std::string>(static_cast<size_t>(size)));
}

TEST_CASE("a gradient comes from a source that stays as it was") {
  CHECK(RunShm(2, [&](dtrun::ops::Communicator& comm) {
          const std::vector<float> source(200'000, static_cast<float>(comm.rank() + 1));
          GradientReducer reducer(comm, {Placed(source.size())}, {ReduceOp::kSum, 64 << 10});
          reducer.MarkReadyFrom(0, source.data());
          reducer.Wait();
          const auto* result = static_cast<const float*>(reducer.gradient(0).data);
          if (result[0] != 3 || result[199'999] != 3 || source[0] != comm.rank() + 1.0f) {
            throw std::runtime_error("wrong sum");
          }
        }) == std::vector<std::string>(2));
}

TEST_CASE("gradients of a size may change places, from step to step and from rank to rank") {
  constexpr uint64_t kCount = 300'000;
  CHECK(RunShm(3, [&](dtrun::ops::Communicator& comm) {
          GradientReducer reducer(
              comm, {Placed(kCount), Placed(kCount), Placed(4)}, {ReduceOp::kSum, 1 << 20});
          if (!reducer.IsAlone(0) || reducer.IsAlone(2)) throw std::runtime_error("not alone?");
          std::vector<float> own(kCount);
          for (int step = 0; step < 4; ++step) {
            // Rank 0 keeps the places, 1 changes them, 2 has memory of its own for gradient 1.
            const bool changes = comm.rank() == 1 && step % 2 == 1;
            float* a = static_cast<float*>(reducer.gradient(changes ? 1 : 0).data);
            float* b = static_cast<float*>(reducer.gradient(changes ? 0 : 1).data);
            if (comm.rank() == 2) b = own.data();
            std::fill(a, a + kCount, 1.0f);
            const std::vector<float> source(kCount, 10.0f);
            const bool unused = comm.rank() == 0 && step == 2;
            if (unused) reducer.MarkUnusedAt(1, b);
            if (!unused) reducer.MarkReadyAt(1, source.data(), b);
            reducer.MarkReadyAt(0, a, a);
            reducer.Wait();
            const float expected = step == 2 ? 20 : 30;
            if (a[0] != 3 || a[kCount - 1] != 3 || b[0] != expected || b[kCount - 1] != expected)
              throw std::runtime_error("wrong sum");
            if (!reducer.WasUsed(1)) throw std::runtime_error("not used?");
          }
        }) == std::vector<std::string>(3));
}

TEST_CASE("a gradient that shares its bucket has one place, and can still be marked there") {
  CHECK(RunShm(1, [&](dtrun::ops::Communicator& comm) {
          GradientReducer reducer(comm, {Placed(4), Placed(4)}, {ReduceOp::kSum, 1024});
          float place[4] = {};
          CHECK_THROWS_WITH(
              reducer.MarkReadyAt(1, place, place), Catch::Contains("shares its bucket"));
          CHECK_THROWS_WITH(reducer.MarkUnusedAt(1, place), Catch::Contains("shares its bucket"));
          reducer.MarkReady(1);
          reducer.Wait();
        }) == std::vector<std::string>(1));
}

TEST_CASE("all ranks know after the wait which gradients no rank used, whatever they are made of") {
  const ReduceOp op = GENERATE(ReduceOp::kAverage, ReduceOp::kMin, ReduceOp::kProduct);
  const DType last = GENERATE(DType::kF16, DType::kBF16, DType::kF32, DType::kF64, DType::kI32);
  const size_t ranks = 3;
  CHECK(RunShm(ranks, [&](dtrun::ops::Communicator& comm) {
          std::vector<float> packed(10);
          GradientReducer reducer(
              comm, {Placed(3, last), {"packed", Buffer(packed.data(), packed.size())}, Placed(5)},
              {op, 64});
          // Gradient 0 is used by all, 2 by rank 1 alone, 1 in every second step.
          for (int step = 0; step < 4; ++step) {
            packed.assign(packed.size(), 7);
            if (comm.rank() == 1) reducer.MarkReady(2);
            if (comm.rank() != 1) reducer.MarkUnused(2);
            if (step % 2 == 0) reducer.MarkUnused(1);
            reducer.Wait();
            if (!reducer.WasUsed(0) || !reducer.WasUsed(2)) throw std::runtime_error("not used?");
            if (reducer.WasUsed(1) != (step % 2 == 1)) throw std::runtime_error("wrongly used");
            if (step % 2 == 0 && packed[9] != 7) throw std::runtime_error("was touched");
          }
        }) == std::vector<std::string>(ranks));
}

TEST_CASE("a rank that did not use a gradient contributes zeros and gets what the others have") {
  CHECK(RunShm(2, [&](dtrun::ops::Communicator& comm) {
          std::vector<double> packed(4);
          GradientReducer reducer(
              comm, {Placed(4), {"packed", Buffer(packed.data(), packed.size())}},
              {ReduceOp::kSum, 1024});
          for (int step = 0; step < 2; ++step) {
            auto* placed = static_cast<float*>(reducer.gradient(0).data);
            std::fill(placed, placed + 4, 5.0f);
            packed.assign(packed.size(), 5);
            for (const size_t i : {0u, 1u}) {
              if (comm.rank() == step) reducer.MarkUnused(i);
            }
            reducer.Wait();
            if (placed[3] != 5 || packed[3] != 5) throw std::runtime_error("wrong sum");
          }
        }) == std::vector<std::string>(2));
}

TEST_CASE(
    "different models on the ranks: all get an error that names the first gradient that differs") {
  const auto errors = RunShm(3, [](dtrun::ops::Communicator& comm) {
    std::vector<Gradient> gradients = {
        {"conv/kernel", Buffer(nullptr, 288, DType::kF32)},
        {"dense/kernel", Buffer(nullptr, comm.rank() == 1 ? 32 : 64, DType::kF32)}};
    GradientReducer(comm, gradients, {ReduceOp::kSum, 1024});
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
    GradientReducer(comm, gradients, {ReduceOp::kSum, 1024});
  });
  CHECK(
      errors[0] ==
      "the ranks have different gradients to reduce: gradient 1 is 'extra' f64[2] on rank 1, none "
      "on rank 0");
  CHECK(errors[1] == errors[0]);
}

}  // namespace
