#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>

#include "dtrun/error.h"
#include "runtime/reducer/bucketed_reducer.h"
#include "tests/runtime/reducer_stories.h"

namespace dtrun::testing {
namespace {

using runtime::Gradient;
using runtime::GradientReducer;
using runtime::ReducerSettings;

TEST_CASE("a bucket is started only after the buckets before it") {
  Calls calls;
  RecordingCommunicator comm(calls);
  GradientReducer reducer(comm, {Placed("a", 16), Placed("b", 32)}, {ReduceOp::kSum, 64});
  reducer.MarkReady(0);  // in the second bucket, because backward runs from the last layer
  CHECK(calls.empty());
  reducer.MarkReady(1);
  // The second bucket with the flags behind it.
  CHECK(calls == Calls{"f32 32", "f32 32"});
  reducer.Wait();
  CHECK(calls.size() == 2);
}

TEST_CASE("the wait reduces unmarked gradients and the next step starts from the beginning") {
  Calls calls;
  RecordingCommunicator comm(calls);
  GradientReducer reducer(comm, {Placed("a", 16), Placed("b", 32)}, {ReduceOp::kSum, 64});
  for (int step = 0; step < 2; ++step) {
    reducer.MarkReady(1);
    reducer.Wait();
  }
  CHECK(calls == Calls{"f32 32", "f32 32", "f32 32", "f32 32"});
}

TEST_CASE("a gradient that is marked twice or does not exist is an error with advice") {
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

TEST_CASE("placed and packed gradients of several types are averaged over the ranks") {
  const int size = GENERATE(1, 2, 3);
  CHECK(RunShm(size, [&](ops::Communicator& comm) {
          std::vector<double> packed(300'000);  // large, so it is reduced in place
          GradientReducer reducer(
              comm,
              {Placed("a", 100'000),
               {"packed", Buffer(packed.data(), packed.size())},
               Placed("b", 5)},
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
        }) == Nothing(size));
}

TEST_CASE("a gradient can come from a source that stays unchanged") {
  CHECK(RunShm(2, [&](ops::Communicator& comm) {
          const std::vector<float> source(200'000, static_cast<float>(comm.rank() + 1));
          GradientReducer reducer(comm, {Placed("a", source.size())}, {ReduceOp::kSum, 64 << 10});
          reducer.MarkReadyFrom(0, source.data());
          reducer.Wait();
          const auto* result = static_cast<const float*>(reducer.gradient(0).data);
          if (result[0] != 3 || result[199'999] != 3 || source[0] != comm.rank() + 1.0f) {
            throw std::runtime_error("wrong sum");
          }
        }) == std::vector<std::string>(2));
}

TEST_CASE("gradients of equal size may swap places between steps and between ranks") {
  constexpr uint64_t kCount = 300'000;
  CHECK(RunShm(3, [&](ops::Communicator& comm) {
          GradientReducer reducer(
              comm, {Placed("a", kCount), Placed("b", kCount), Placed("c", 4)},
              {ReduceOp::kSum, 1 << 20});
          if (!reducer.IsAlone(0) || reducer.IsAlone(2)) throw std::runtime_error("not alone?");
          std::vector<float> own(kCount);
          for (int step = 0; step < 4; ++step) {
            // Rank 0 keeps the places. Rank 1 swaps them. Rank 2 has its own memory for gradient 1.
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

TEST_CASE("a gradient that shares its bucket can be marked only at its own place") {
  CHECK(RunShm(1, [&](ops::Communicator& comm) {
          GradientReducer reducer(comm, {Placed("a", 4), Placed("b", 4)}, {ReduceOp::kSum, 1024});
          float place[4] = {};
          CHECK_THROWS_WITH(
              reducer.MarkReadyAt(1, place, place), Catch::Contains("shares its bucket"));
          CHECK_THROWS_WITH(reducer.MarkUnusedAt(1, place), Catch::Contains("shares its bucket"));
          reducer.MarkReady(1);
          reducer.Wait();
        }) == std::vector<std::string>(1));
}

TEST_CASE("all ranks know after the wait which gradients no rank used for every type and op") {
  const ReduceOp op = GENERATE(ReduceOp::kAverage, ReduceOp::kMin, ReduceOp::kProduct);
  const DType last = GENERATE(DType::kF16, DType::kBF16, DType::kF32, DType::kF64, DType::kI32);
  const size_t ranks = 3;
  CHECK(RunShm(ranks, [&](ops::Communicator& comm) {
          std::vector<float> packed(10);
          GradientReducer reducer(
              comm,
              {Placed("a", 3, last),
               {"packed", Buffer(packed.data(), packed.size())},
               Placed("b", 5)},
              {op, 64});
          // All ranks use gradient 0. Only rank 1 uses gradient 2. Every second step uses gradient
          // 1.
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

TEST_CASE("a rank that did not use a gradient contributes zeros and gets the sum of the others") {
  CHECK(RunShm(2, [&](ops::Communicator& comm) {
          std::vector<double> packed(4);
          GradientReducer reducer(
              comm, {Placed("a", 4), {"packed", Buffer(packed.data(), packed.size())}},
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
    "different models on the ranks are an error on all ranks that names the first different "
    "gradient") {
  const auto errors = RunShm(3, [](ops::Communicator& comm) {
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

TEST_CASE("an additional gradient on one rank is named in the error") {
  const auto errors = RunShm(2, [](ops::Communicator& comm) {
    std::vector<Gradient> gradients = {Placed("a", 1)};
    if (comm.rank() == 1) gradients.push_back({"extra", Buffer(nullptr, 2, DType::kF64)});
    GradientReducer(comm, gradients, {ReduceOp::kSum, 1024});
  });
  CHECK(
      errors[0] ==
      "the ranks have different gradients to reduce: gradient 1 is 'extra' f64[2] on rank 1, none "
      "on rank 0");
  CHECK(errors[1] == errors[0]);
}

TEST_CASE("every option and group that differs between the ranks is named") {
  const auto error = [](const std::function<void(ReducerSettings&)>& on_rank_1) {
    const Texts errors = RunShm(2, [&](ops::Communicator& comm) {
      ReducerSettings settings{ReduceOp::kSum, 1024};
      if (comm.rank() == 1) on_rank_1(settings);
      GradientReducer(comm, {Placed("a", 4), Placed("b", 4)}, settings);
    });
    CHECK(errors[0] == errors[1]);
    return errors[0];
  };
  const std::string options =
      "the ranks have different gradients to reduce: the reducer's options are ";
  CHECK(
      error([](ReducerSettings& s) { s.first_bucket_bytes = 64; }) ==
      options +
          "sum in buckets of 1024 bytes, the first of 1024 on rank 0, "
          "sum in buckets of 1024 bytes, the first of 64 on rank 1");
  CHECK_THAT(
      error([](ReducerSettings& s) { s.rebuild = false; }),
      Catch::Contains(", never rebuilt on rank 1"));
  CHECK_THAT(
      error([](ReducerSettings& s) { s.wire = runtime::CreateCast(DType::kBF16); }),
      Catch::Contains(", on the wire as bf16 on rank 1"));
  CHECK_THAT(
      error([](ReducerSettings& s) { s.scale.after = 0.5; }),
      Catch::Contains(", scaled by 1 and 0.5 on rank 1"));
  CHECK(
      error([](ReducerSettings& s) {
        s.groups = {{0}, {1}};
      }) ==
      "the ranks have different gradients to reduce: gradient 0 is 'a' f32[4] on rank 0, 'a' "
      "f32[4] "
      "in group 0 on rank 1");
}

TEST_CASE("invalid gradients and settings are refused") {
  Calls calls;
  RecordingCommunicator comm(calls);
  const auto refusal = [&](std::vector<Gradient> gradients, const ReducerSettings& settings) {
    try {
      GradientReducer(comm, std::move(gradients), settings);
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::kInvalidArgument);
      return std::string(error.what());
    }
    return std::string("taken");
  };
  const ReducerSettings plain{ReduceOp::kSum, 1024};
  CHECK(
      refusal({Placed("w", 1), Placed("b", 1), Placed("w", 2)}, plain) ==
      "gradients 0 and 2 are both called 'w'; expected a name for each");
  CHECK(refusal({Placed("w", 1), Placed("", 1)}, plain) == "gradient 1 has no name");

  const std::vector<Gradient> three = {Placed("a", 1), Placed("b", 1), Placed("c", 1, DType::kF64)};
  ReducerSettings settings = plain;
  settings.first_bucket_bytes = 1025;
  CHECK(
      refusal(three, settings) ==
      "first_bucket_bytes is 1025; expected at most bucket_bytes, 1024");
  const auto grouped = [&](std::vector<std::vector<size_t>> groups, uint64_t group_count = 0) {
    ReducerSettings with_groups = plain;
    with_groups.groups = std::move(groups);
    with_groups.group_count = group_count;
    return refusal(three, with_groups);
  };
  CHECK(grouped({{0, 1}, {}}) == "taken");
  CHECK(grouped({}, 3) == "taken");
  CHECK(grouped({{0}, {1, 0}}) == "gradient 0 'a' is in groups 0 and 1; expected one");
  CHECK(grouped({{0}, {1, 1}}) == "group 1 has gradient 1 'b' twice");
  CHECK(grouped({{7}}) == "group 0 has gradient 7, which does not exist; the reducer has 3");
  CHECK(grouped({{1, 2}}) == "group 0 has 'b' of f32 and 'c' of f64; expected one dtype");
  CHECK(
      grouped({{0}}, 2) ==
      "gradients are grouped by lists and by a number of groups, 2; expected one of them");
  CHECK(grouped({}, 4) == "gradients are dealt to 4 groups; expected at most 3, one for each");
}

TEST_CASE("one operation reduces the gradients of a group and others are reduced as usual") {
  Calls calls;
  RecordingCommunicator comm(calls);
  ReducerSettings settings{ReduceOp::kSum, 64};
  settings.groups = {{0, 3}};
  GradientReducer reducer(
      comm, {Placed("a", 16), Placed("b", 16), Placed("c", 16), Placed("d", 16)}, settings);
  for (int step = 0; step < 2; ++step) {
    calls.clear();
    for (const size_t i : {3, 2, 1}) reducer.MarkReady(i);
    CHECK(calls == Calls{"f32 16", "f32 16"});
    reducer.MarkReady(0);
    reducer.Wait();
    CHECK(calls == Calls{"f32 16", "f32 16", "f32 48"});
  }
}

TEST_CASE("every placed and packed gradient is reduced with groups by number") {
  const uint64_t groups = GENERATE(1, 2, 5);
  const int size = GENERATE(1, 2, 3);
  CHECK(RunShm(size, [&](ops::Communicator& comm) {
          std::vector<std::vector<float>> own(5, std::vector<float>(100));
          std::vector<Gradient> gradients;
          for (size_t i = 0; i < own.size(); ++i) {
            const bool placed = i % 2 == 0;
            gradients.push_back(
                {std::to_string(i), Buffer(placed ? nullptr : own[i].data(), 100, DType::kF32)});
          }
          ReducerSettings settings{ReduceOp::kSum, 256};
          settings.group_count = groups;
          GradientReducer reducer(comm, gradients, settings);
          for (int step = 0; step < 3; ++step) {
            for (size_t i = 0; i < own.size(); ++i) {
              auto* data = static_cast<float*>(reducer.gradient(i).data);
              std::fill(data, data + 100, static_cast<float>(i + 1));
              if (i != 3) reducer.MarkReady(i);
            }
            reducer.Wait();
            for (size_t i = 0; i < own.size(); ++i) {
              const float expected = static_cast<float>(i + 1) * static_cast<float>(size);
              Expect(static_cast<float*>(reducer.gradient(i).data)[99] == expected, "the sum");
            }
          }
        }) == Nothing(size));
}

}  // namespace
}  // namespace dtrun::testing
