#include <catch2/catch.hpp>
#include <random>
#include <vector>

#include "ops/reduce/reduce.h"

namespace dtrun::ops {
namespace {

using Floats = std::vector<float>;

// The arrays of a recurrence. A test uses a part of each array.
struct State {
  State(size_t count, int input_count, int copy_count, std::mt19937& random)
      : inputs(size_t(input_count)), copies(size_t(copy_count), Floats(count, 99)) {
    const auto fill = [&](Floats& list) {
      list.resize(count);
      for (float& value : list) value = std::uniform_real_distribution<float>(-2, 2)(random);
    };
    fill(values), fill(accumulator);
    for (Floats& input : inputs) fill(input);
  }
  std::vector<const void*> InputPointers(size_t first) const {
    std::vector<const void*> pointers;
    for (const Floats& input : inputs) pointers.push_back(input.data() + first);
    return pointers;
  }

  Floats values, accumulator;
  std::vector<Floats> inputs, copies;
};

// Calls Reduce, then applies the formula of the header element by element.
void StepPlainly(
    State& s, size_t first, size_t count, const Arithmetic& a, const Recurrence& r,
    bool with_accumulator) {
  Floats x(count);
  void* out = x.data();
  Reduce(
      s.InputPointers(first).data(), static_cast<int>(s.inputs.size()), &out, 1, count, DType::kF32,
      a);
  for (size_t i = 0; i < count; ++i) {
    float& value = s.values[first + i];
    if (r.decay != 0) x[i] += r.decay * value;
    float change = r.by_input * x[i];
    if (with_accumulator) {
      float& accumulator = s.accumulator[first + i];
      accumulator = r.keep * accumulator + r.take * x[i];
      change = r.by_accumulator * accumulator;
      if (r.by_input != 0) change += r.by_input * x[i];
    }
    value += change;
    for (Floats& copy : s.copies) copy[first + i] = value;
  }
}

TEST_CASE("a fused recurrence has the bits of a reduction and the formula at all offsets") {
  std::mt19937 random(7);
  const Recurrence classic{.keep = 0.9f, .by_accumulator = -0.1f};
  const Recurrence nesterov{
      .keep = 0.9f, .take = -0.1f, .decay = 0.01f, .by_accumulator = 0.9f, .by_input = -0.1f};
  for (const InstructionSet& instructions : InstructionSetsHere()) {
    for (const int inputs : {1, 2, 3, 5}) {
      for (const size_t count : {0, 1, 15, 33, 64, 1000, 2500}) {
        for (int turn = 0; turn < 12; ++turn) {
          const size_t first = size_t(turn) % 5;
          const bool with_accumulator = turn % 4 != 3;
          const Arithmetic arithmetic{
              .op = turn % 2 == 0 ? ReduceOp::kSum : ReduceOp::kAverage,
              .scale = {1, turn % 3 == 0 ? 1 : 0.7},
              .stores = turn % 2 == 0 ? Stores::kStreaming : Stores::kCached};
          const Recurrence& r = turn < 6 ? classic : nesterov;
          State expected(first + count + 3, inputs, turn % 3, random);
          State s = expected;
          StepPlainly(expected, first, count, arithmetic, r, with_accumulator);
          std::vector<void*> copies;
          for (Floats& copy : s.copies) copies.push_back(copy.data() + first);
          ReduceAndRecurWith(
              instructions, s.InputPointers(first).data(), inputs, arithmetic, r,
              {.accumulator = with_accumulator ? s.accumulator.data() + first : nullptr,
               .values = s.values.data() + first,
               .copies = copies.data(),
               .copy_count = static_cast<int>(copies.size())},
              count);
          FenceStores();
          CAPTURE(instructions.name, inputs, count, turn);
          CHECK(s.values == expected.values);
          CHECK(s.accumulator == expected.accumulator);
          CHECK(s.copies == expected.copies);
        }
      }
    }
  }
}

}  // namespace
}  // namespace dtrun::ops
