// After the first step, the buckets follow the real order in which gradients became ready.

#include <algorithm>
#include <catch2/catch.hpp>
#include <random>

#include "dtrun/error.h"
#include "tests/runtime/reducer_stories.h"

namespace dtrun::testing {
namespace {

using runtime::Gradient;
using runtime::GradientReducer;
using runtime::ReducerSettings;
using Indices = std::vector<size_t>;

std::vector<Gradient> PlacedLines(size_t count) {
  std::vector<Gradient> gradients;
  for (size_t i = 0; i < count; ++i) gradients.push_back(Placed(std::to_string(i), 16));
  return gradients;
}

// Marks gradients in `order`. Returns the number of operations started before each mark.
std::vector<size_t> StartedBefore(GradientReducer& reducer, const Calls& calls, Indices order) {
  std::vector<size_t> started;
  const size_t before = calls.size();
  for (const size_t i : order) {
    started.push_back(calls.size() - before);
    reducer.MarkReady(i);
  }
  reducer.Wait();
  return started;
}

TEST_CASE("a late parameter delays the others only in the first step") {
  Calls calls;
  RecordingCommunicator comm(calls);
  GradientReducer reducer(comm, PlacedLines(8), {ReduceOp::kSum, 128});
  const Indices order = {7, 5, 4, 3, 2, 1, 0, 6};
  CHECK(StartedBefore(reducer, calls, order) == Indices(8, 0));
  const Indices rebuilt = {0, 1, 1, 2, 2, 3, 3, 4};
  CHECK(StartedBefore(reducer, calls, order) == rebuilt);
  CHECK(StartedBefore(reducer, calls, order) == rebuilt);
}

TEST_CASE("an unused parameter marked at the end delays others only in the first step") {
  Calls calls;
  RecordingCommunicator comm(calls);
  GradientReducer reducer(comm, PlacedLines(8), {ReduceOp::kSum, 128});
  for (int step = 0; step < 2; ++step) {
    calls.clear();
    for (const size_t i : {7, 5, 4, 3, 2, 1, 0}) reducer.MarkReady(i);
    CHECK(calls.size() == (step == 0 ? 0u : 4u));
    reducer.MarkUnused(6);
    reducer.Wait();
  }
}

TEST_CASE("buckets do not change if rebuild is off") {
  Calls calls;
  RecordingCommunicator comm(calls);
  ReducerSettings settings{ReduceOp::kSum, 128};
  settings.rebuild = false;
  GradientReducer reducer(comm, PlacedLines(8), settings);
  for (int step = 0; step < 2; ++step)
    CHECK(StartedBefore(reducer, calls, {7, 5, 4, 3, 2, 1, 0, 6}) == Indices(8, 0));
}

TEST_CASE("gradients with their own memory are packed in the order in which they become ready") {
  Calls calls;
  RecordingCommunicator comm(calls);
  std::vector<std::vector<float>> own(8, std::vector<float>(16));
  std::vector<Gradient> gradients = PlacedLines(8);
  for (size_t i = 0; i < 8; ++i) gradients[i].buffer.data = own[i].data();
  GradientReducer reducer(comm, gradients, {ReduceOp::kSum, 128});
  const Indices order = {0, 7, 1, 6, 2, 5, 3, 4};
  StartedBefore(reducer, calls, order);
  calls.clear();
  CHECK(StartedBefore(reducer, calls, order) == Indices{0, 0, 1, 1, 2, 2, 3, 3});
  CHECK(calls == Calls{"f32 32", "f32 32", "f32 32", "f32 48"});  // the last with the flags
}

TEST_CASE("unmarked gradients come last") {
  Calls calls;
  RecordingCommunicator comm(calls);
  GradientReducer reducer(comm, PlacedLines(8), {ReduceOp::kSum, 128});
  for (int step = 0; step < 2; ++step) {
    calls.clear();
    reducer.MarkReady(3);
    reducer.MarkReady(2);
    CHECK(calls.size() == (step == 0 ? 0u : 1u));
    reducer.Wait();
  }
}

// ---- ranks as threads

// A model with gradients in the reducer's block (placed) or in their own memory (packed). In a
// mixed model, odd gradients are packed.
struct PlacedModel {
  std::vector<std::vector<float>> own;
  std::vector<Gradient> gradients;
};

enum class Memory { kPlaced, kPacked, kMixed };

PlacedModel MakeModel(Memory memory) {
  PlacedModel model;
  const std::vector<size_t> counts = {5, 262'144, 700, 1, 90, 262'145, 33, 1000, 64, 2};
  for (const size_t count : counts) model.own.emplace_back(count);
  for (size_t i = 0; i < counts.size(); ++i) {
    const bool packed = memory == Memory::kPacked || (memory == Memory::kMixed && i % 2 == 1);
    float* data = packed ? model.own[i].data() : nullptr;
    model.gradients.push_back({"g" + std::to_string(i), Buffer(data, counts[i], DType::kF32)});
  }
  return model;
}

// A random order that differs between ranks.
Indices OrderOf(int rank, size_t count) {
  Indices order = runtime::ReverseOrder(count);
  std::mt19937 random(static_cast<unsigned>(rank));
  std::shuffle(order.begin(), order.end(), random);
  return order;
}

// Fills with values for which the order of summation changes the sum.
void Fill(const Buffer& gradient, uint32_t& state) {
  auto* data = static_cast<float*>(gradient.data);
  for (uint64_t k = 0; k < gradient.count; ++k) {
    state = state * 1664525 + 1013904223;
    data[k] = static_cast<float>(state >> 8) / 3;
  }
}

// The results of three steps on one rank. Odd ranks do not use gradient 4.
std::vector<float> Train(ops::Communicator& comm, Memory memory, bool rebuild) {
  PlacedModel model = MakeModel(memory);
  ReducerSettings settings{ReduceOp::kAverage, 1024};
  settings.first_bucket_bytes = 128;
  settings.rebuild = rebuild;
  GradientReducer reducer(comm, model.gradients, settings);
  const size_t count = model.gradients.size();
  std::vector<void*> places;
  for (size_t i = 0; i < count; ++i) places.push_back(reducer.gradient(i).data);
  uint32_t random = static_cast<uint32_t>(comm.rank());
  std::vector<float> results;
  for (int step = 0; step < 3; ++step) {
    for (size_t i = 0; i < count; ++i) Fill(reducer.gradient(i), random);
    for (const size_t i : OrderOf(comm.rank(), count)) {
      if (i == 4 && comm.rank() % 2 == 1) reducer.MarkUnused(i);
      if (i != 4 || comm.rank() % 2 == 0) reducer.MarkReady(i);
    }
    reducer.Wait();
    for (size_t i = 0; i < count; ++i) {
      const Buffer gradient = reducer.gradient(i);
      Expect(gradient.data == places[i], "a gradient stays where it is");
      Expect(reducer.IsAlone(i) == (i == 1 || i == 5), "large ones are alone");
      Expect(reducer.WasUsed(i), "it was used");
      const auto* data = static_cast<const float*>(gradient.data);
      results.insert(results.end(), data, data + gradient.count);
    }
  }
  return results;
}

TEST_CASE("results have the same bits with and without rebuild in any order of marks") {
  const int size = GENERATE(1, 2, 3, 4);
  const Memory memory = GENERATE(Memory::kPlaced, Memory::kPacked, Memory::kMixed);
  std::vector<std::vector<float>> rebuilt(static_cast<size_t>(size)), fixed(rebuilt);
  CHECK(RunShm(size, [&](ops::Communicator& comm) {
          const auto rank = static_cast<size_t>(comm.rank());
          rebuilt[rank] = Train(comm, memory, true);
          fixed[rank] = Train(comm, memory, false);
        }) == Nothing(size));
  for (size_t rank = 0; rank < rebuilt.size(); ++rank) {
    CHECK((rebuilt[rank] == fixed[rank]));
    CHECK((rebuilt[rank] == rebuilt[0]));
  }
}

TEST_CASE("all ranks rebuild the same buckets also if only some ranks have packed gradients") {
  std::vector<std::vector<runtime::Bucket>> buckets(3);
  CHECK(RunShm(3, [&](ops::Communicator& comm) {
          PlacedModel model = MakeModel(comm.rank() == 1 ? Memory::kPlaced : Memory::kPacked);
          GradientReducer reducer(comm, model.gradients, {ReduceOp::kSum, 1024});
          const auto before = reducer.plan().buckets;
          for (const size_t i : OrderOf(comm.rank(), model.gradients.size())) reducer.MarkReady(i);
          reducer.Wait();
          buckets[static_cast<size_t>(comm.rank())] = reducer.plan().buckets;
          Expect(reducer.plan().buckets != before, "the plan is another one");
          reducer.Wait();
        }) == Nothing(3));
  CHECK((buckets[1] == buckets[0] && buckets[2] == buckets[0]));
}

TEST_CASE("all ranks know the unused gradients after the rebuild") {
  CHECK(RunShm(3, [&](ops::Communicator& comm) {
          GradientReducer reducer(comm, PlacedLines(8), {ReduceOp::kSum, 128});
          for (size_t step = 0; step < 4; ++step) {
            for (const size_t i : OrderOf(comm.rank(), 8)) {
              if (i % 4 == step % 4) reducer.MarkUnused(i);
              if (i % 4 != step % 4) reducer.MarkReady(i);
            }
            reducer.Wait();
            for (size_t i = 0; i < 8; ++i)
              Expect(reducer.WasUsed(i) == (i % 4 != step % 4), "what was used");
          }
        }) == Nothing(3));
}

TEST_CASE("a reducer without gradients finishes every step") {
  CHECK(RunShm(2, [&](ops::Communicator& comm) {
          GradientReducer reducer(comm, {}, {ReduceOp::kSum, 128});
          for (int step = 0; step < 2; ++step) reducer.Wait();
        }) == Nothing(2));
}

}  // namespace
}  // namespace dtrun::testing
