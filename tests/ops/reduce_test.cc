#include "ops/reduce/reduce.h"

#include <immintrin.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "dtrun/error.h"

namespace {

using dtrun::DType;
using dtrun::ReduceOp;
using dtrun::ops::Arithmetic;
using dtrun::ops::InstructionSet;
using dtrun::ops::InstructionSetsHere;
using dtrun::ops::Stores;

constexpr DType kDTypes[] = {DType::kU8,  DType::kI8,  DType::kU16, DType::kI16, DType::kU32,
                             DType::kI32, DType::kU64, DType::kI64, DType::kF16, DType::kBF16,
                             DType::kF32, DType::kF64, DType::kBool};
constexpr ReduceOp kOps[] = {
    ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct};

template <typename T>
std::vector<T> Reduced(
    const std::vector<std::vector<T>>& inputs, DType dtype, const Arithmetic& arithmetic) {
  std::vector<const void*> pointers;
  for (const auto& input : inputs) pointers.push_back(input.data());
  std::vector<T> output(inputs[0].size());
  void* out = output.data();
  dtrun::ops::Reduce(
      pointers.data(), static_cast<int>(inputs.size()), &out, 1, output.size(), dtype, arithmetic);
  return output;
}

float FromBF16(uint16_t bits) {
  const uint32_t wide = uint32_t{bits} << 16;
  float value;
  std::memcpy(&value, &wide, sizeof value);
  return value;
}

using Bytes = std::vector<unsigned char>;

// Random bits for integers, 0 or 1 for bools, and random numbers of every size for floats,
// sometimes with an infinity or a NaN.
Bytes RandomElements(DType dtype, size_t count, std::mt19937_64& random) {
  const size_t size = SizeOf(dtype);
  Bytes bytes(count * size);
  for (size_t i = 0; i < count; ++i) {
    uint64_t bits = random();
    if (dtype == DType::kBool) bits &= 1;
    const bool special = random() % 16 == 0;
    if (dtype == DType::kF32 && !special) {
      const float value = std::ldexp(
          static_cast<float>(random() % 2001) - 1000.3f, static_cast<int>(random() % 20) - 10);
      std::memcpy(&bits, &value, sizeof value);
    }
    std::memcpy(&bytes[i * size], &bits, size);
  }
  return bytes;
}

// The compiler chooses which of two NaNs survives, so all NaNs become the same NaN.
Bytes WithOneNaN(Bytes bytes, DType dtype) {
  const size_t size = SizeOf(dtype);
  uint64_t magnitude = 0, infinity = 0;
  if (dtype == DType::kF16) magnitude = 0x7fff, infinity = 0x7c00;
  if (dtype == DType::kBF16) magnitude = 0x7fff, infinity = 0x7f80;
  if (dtype == DType::kF32) magnitude = 0x7fffffff, infinity = 0x7f800000;
  if (dtype == DType::kF64) magnitude = ~uint64_t{0} >> 1, infinity = 0x7ffull << 52;
  if (magnitude == 0) return bytes;
  for (size_t i = 0; i < bytes.size(); i += size) {
    uint64_t bits = 0;
    std::memcpy(&bits, &bytes[i], size);
    if ((bits & magnitude) > infinity) std::memcpy(&bytes[i], &magnitude, size);
  }
  return bytes;
}

// Reduces elements [begin, end) into `output`.
void ReduceRange(
    const InstructionSet& instructions, const std::vector<Bytes>& inputs, DType dtype,
    const Arithmetic& arithmetic, size_t begin, size_t end, Bytes& output) {
  const size_t size = SizeOf(dtype);
  std::vector<const void*> pointers;
  for (const Bytes& input : inputs) pointers.push_back(input.data() + begin * size);
  void* out = output.data() + begin * size;
  dtrun::ops::ReduceWith(
      instructions, pointers.data(), static_cast<int>(inputs.size()), &out, 1, end - begin, dtype,
      arithmetic);
}

// The tree of the definition: the left half has n - n / 2 inputs.
template <typename A, typename Combine>
A Tree(const std::vector<A>& values, size_t first, size_t n, Combine combine) {
  if (n == 1) return values[first];
  const size_t left = n - n / 2;
  return combine(Tree(values, first, left, combine), Tree(values, first + left, n - left, combine));
}

template <typename A>
A Sum(const std::vector<A>& values) {
  return Tree(values, 0, values.size(), [](A a, A b) { return static_cast<A>(a + b); });
}

TEST_CASE("floats are summed in a balanced tree over the ranks") {
  // 2^24 + 1 is not a float, so a sum from left to right would lose every 1.
  const float big = 16777216.0f;
  CHECK(
      Reduced<float>({{big}, {1}, {1}, {1}}, DType::kF32, {.op = ReduceOp::kSum})[0] ==
      (big + 1.0f) + (1.0f + 1.0f));
  CHECK(
      Reduced<float>({{1}, {1}, {big}, {1}, {1}}, DType::kF32, {.op = ReduceOp::kSum})[0] ==
      ((1.0f + 1.0f) + big) + (1.0f + 1.0f));
}

TEST_CASE("the average of integers truncates toward zero") {
  CHECK(
      Reduced<int32_t>({{-7, 7}, {0, 0}}, DType::kI32, {.op = ReduceOp::kAverage}) ==
      std::vector<int32_t>{-3, 3});
  CHECK(
      Reduced<uint8_t>({{200}, {50}, {1}}, DType::kU8, {.op = ReduceOp::kAverage})[0] ==
      (200 + 50 + 1) % 256 / 3);
}

TEST_CASE("bf16 accumulates in f32 and is rounded once") {
  // 256 + 1 rounds to 256 in bf16, so rounding after each addition would give 256.
  const uint16_t k256 = 0x4380, k1 = 0x3f80;
  CHECK(
      FromBF16(Reduced<uint16_t>(
          {{k256}, {k1}, {k1}, {k1}}, DType::kBF16, {.op = ReduceOp::kSum})[0]) == 260.0f);
}

TEST_CASE("f16 sums are right for every f16 value and round to even and overflow to infinity") {
  // A half plus zero is the same half, because widening is exact and narrowing is its inverse.
  std::vector<uint16_t> all(65536), zero(65536, 0);
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
  const auto sum = Reduced<uint16_t>({all, zero}, DType::kF16, {.op = ReduceOp::kSum});
  for (size_t i = 0; i < all.size(); ++i) {
    const bool nan = (i & 0x7fff) > 0x7c00;
    if (nan) {
      CHECK((sum[i] & 0x7fff) > 0x7c00);
    } else if (i != 0x8000) {  // -0 + 0 is +0
      REQUIRE(sum[i] == i);
    }
  }
  // 2048 + 1 lies between two halves and rounds to even. 65504 + 32 is beyond the largest half.
  CHECK(Reduced<uint16_t>({{0x6800}, {0x3c00}}, DType::kF16, {.op = ReduceOp::kSum})[0] == 0x6800);
  CHECK(Reduced<uint16_t>({{0x7bff}, {0x5000}}, DType::kF16, {.op = ReduceOp::kSum})[0] == 0x7c00);
}

TEST_CASE("a minimum with a NaN on either side is NaN") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax}) {
    const auto result = Reduced<float>({{nan, 1, 1}, {1, nan, 2}}, DType::kF32, {.op = op});
    CHECK(std::isnan(result[0]));
    CHECK(std::isnan(result[1]));
    CHECK(result[2] == (op == ReduceOp::kMin ? 1.0f : 2.0f));
  }
}

TEST_CASE("on bools sum and max are or and product and min are and") {
  const std::vector<std::vector<uint8_t>> inputs = {{0, 0, 1, 1}, {0, 1, 0, 1}};
  const std::vector<uint8_t> either = {0, 1, 1, 1}, both = {0, 0, 0, 1};
  CHECK(Reduced(inputs, DType::kBool, {.op = ReduceOp::kSum}) == either);
  CHECK(Reduced(inputs, DType::kBool, {.op = ReduceOp::kMax}) == either);
  CHECK(Reduced(inputs, DType::kBool, {.op = ReduceOp::kProduct}) == both);
  CHECK(Reduced(inputs, DType::kBool, {.op = ReduceOp::kMin}) == both);
}

TEST_CASE("the outputs may be the inputs at every count around the block size") {
  for (const size_t count : {1, 15, 16, 17, 1023, 1024, 1025, 5000}) {
    for (const int ranks : {2, 3, 4, 7}) {
      std::vector<std::vector<int64_t>> data(
          static_cast<size_t>(ranks), std::vector<int64_t>(count));
      for (size_t r = 0; r < data.size(); ++r) {
        for (size_t i = 0; i < count; ++i) data[r][i] = static_cast<int64_t>((r + 1) * (i + 3));
      }
      std::vector<void*> pointers;
      for (auto& input : data) pointers.push_back(input.data());
      dtrun::ops::Reduce(pointers.data(), ranks, pointers.data(), ranks, count, DType::kI64, {});
      for (const auto& output : data) {
        for (size_t i = 0; i < count; ++i) {
          REQUIRE(output[i] == static_cast<int64_t>(i + 3) * ranks * (ranks + 1) / 2);
        }
      }
    }
  }
}

TEST_CASE("every input is scaled before the reduction and the result after it") {
  // 0.1 is not a float. The factor is rounded to the type first, then each product is rounded.
  const float third = 1.0f / 3.0f, tenth = 0.1f, seven = 7.0f;
  CHECK(
      Reduced<float>({{third}, {seven}}, DType::kF32, {.scale = {.before = 0.1, .after = 3}})[0] ==
      (third * tenth + seven * tenth) * 3.0f);
  CHECK(
      Reduced<double>({{0.3}, {7}}, DType::kF64, {.scale = {.before = 0.1, .after = 3}})[0] ==
      (0.3 * 0.1 + 7 * 0.1) * 3);
  // Each input is truncated separately: 2 + 2, not 5.
  CHECK(Reduced<int32_t>({{5}, {5}}, DType::kI32, {.scale = {.before = 0.5, .after = 1}})[0] == 4);
  CHECK(
      Reduced<int32_t>({{-5}, {0}}, DType::kI32, {.scale = {.before = 1, .after = 0.5}})[0] == -2);
}

TEST_CASE("an average divides by the number of inputs or by the given divisor") {
  CHECK(Reduced<float>({{6}, {6}}, DType::kF32, {.op = ReduceOp::kAverage})[0] == 6);
  CHECK(Reduced<float>({{6}, {6}}, DType::kF32, {.op = ReduceOp::kAverage, .divisor = 4})[0] == 3);
  CHECK(Reduced<int8_t>({{-128}}, DType::kI8, {.op = ReduceOp::kAverage, .divisor = 256})[0] == 0);
}

TEST_CASE("scaled integers stay inside their type") {
  CHECK(
      Reduced<int8_t>({{100, -100}}, DType::kI8, {.scale = {.before = 2, .after = 1}}) ==
      std::vector<int8_t>{127, -128});
  CHECK(Reduced<uint32_t>({{7}}, DType::kU32, {.scale = {.before = -1, .after = 1}})[0] == 0);
  CHECK(
      Reduced<uint64_t>({{1ull << 63}}, DType::kU64, {.scale = {.before = 2, .after = 1}})[0] ==
      std::numeric_limits<uint64_t>::max());
  CHECK(
      Reduced<int64_t>({{1ll << 62}}, DType::kI64, {.scale = {.before = 4, .after = 1}})[0] ==
      std::numeric_limits<int64_t>::max());
}

TEST_CASE("a factor of 1 leaves 64-bit integers alone") {
  const int64_t odd = (1ll << 53) + 1;  // not exact in f64
  CHECK(Reduced<int64_t>({{odd}}, DType::kI64, {.scale = {.before = 1, .after = 1}})[0] == odd);
  CHECK(
      Reduced<int64_t>({{odd}}, DType::kI64, {.scale = {.before = 1, .after = 0.5}})[0] ==
      (1ll << 52));
}

TEST_CASE("floats are summed in the tree of the header for every number of inputs") {
  std::mt19937_64 random(7);
  for (size_t n = 1; n <= 20; ++n) {
    bool differs_from_left_to_right = false;
    for (int repetition = 0; repetition < 50; ++repetition) {
      std::vector<std::vector<float>> inputs;
      std::vector<float> values;
      for (size_t k = 0; k < n; ++k) {
        const float value = std::ldexp(
            static_cast<float>(random() % 1000003) - 500000.0f, static_cast<int>(random() % 24));
        values.push_back(value);
        inputs.push_back(std::vector<float>(33, value));
      }
      const auto sum = Reduced<float>(inputs, DType::kF32, {});
      REQUIRE(sum == std::vector<float>(33, Sum(values)));
      float from_left = values[0];
      for (size_t k = 1; k < n; ++k) from_left += values[k];
      differs_from_left_to_right |= from_left != sum[0];
    }
    if (n > 3) CHECK(differs_from_left_to_right);
  }
}

TEST_CASE("every instruction set and every cut of the elements give the same bits") {
  std::mt19937_64 random(11);
  const auto sets = InstructionSetsHere();
  const Arithmetic plain[] = {{}, {.scale = {.before = 0.3, .after = 1.7}}};
  for (const DType dtype : kDTypes) {
    for (const size_t ranks : {1, 2, 3, 4, 5, 6, 7, 8, 9, 11}) {
      const size_t count = 1 + random() % 300;
      std::vector<Bytes> inputs;
      for (size_t k = 0; k < ranks; ++k) inputs.push_back(RandomElements(dtype, count, random));
      for (const ReduceOp op : kOps) {
        for (Arithmetic arithmetic : plain) {
          arithmetic.op = op;
          CAPTURE(NameOf(dtype), NameOf(op), ranks, count, arithmetic.scale.before);
          Bytes expected(count * SizeOf(dtype));
          ReduceRange(sets.back(), inputs, dtype, arithmetic, 0, count, expected);
          expected = WithOneNaN(expected, dtype);
          for (const InstructionSet& set : sets) {
            CAPTURE(set.name);
            Bytes output(expected.size()), cut(expected.size());
            ReduceRange(set, inputs, dtype, arithmetic, 0, count, output);
            REQUIRE(WithOneNaN(output, dtype) == expected);
            const size_t first = random() % count, second = first + random() % (count - first);
            ReduceRange(set, inputs, dtype, arithmetic, 0, first, cut);
            ReduceRange(set, inputs, dtype, arithmetic, first, second, cut);
            ReduceRange(set, inputs, dtype, arithmetic, second, count, cut);
            REQUIRE(WithOneNaN(cut, dtype) == expected);
          }
        }
      }
    }
  }
}

// The header's contract for one element, in plain C++.
template <typename T>
T ScaledInteger(T value, double factor) {
  if (factor == 1) return value;
  const double scaled = std::trunc(static_cast<double>(value) * factor);
  if (scaled <= static_cast<double>(std::numeric_limits<T>::min())) {
    return std::numeric_limits<T>::min();
  }
  if (scaled >= static_cast<double>(std::numeric_limits<T>::max())) {
    return std::numeric_limits<T>::max();
  }
  return static_cast<T>(scaled);
}

template <typename T>
T Multiplied(T value, double factor) {
  if constexpr (std::is_integral_v<T>) return ScaledInteger(value, factor);
  return static_cast<T>(value * static_cast<T>(factor));
}

template <typename T>
T Divided(T value, int divisor) {
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(value / static_cast<decltype(value + 0)>(divisor));
  } else {
    return value * (T{1} / static_cast<T>(divisor));
  }
}

template <typename T>
T OneElement(std::vector<T> values, const Arithmetic& arithmetic) {
  for (T& value : values) value = Multiplied(value, arithmetic.scale.before);
  const auto tree = [&](auto combine) { return Tree(values, 0, values.size(), combine); };
  const int divisor =
      arithmetic.divisor == 0 ? static_cast<int>(values.size()) : arithmetic.divisor;
  T result{};
  switch (arithmetic.op) {
    case ReduceOp::kSum: result = Sum(values); break;
    case ReduceOp::kAverage: result = Divided(Sum(values), divisor); break;
    case ReduceOp::kMin: result = tree([](T a, T b) { return std::min(a, b); }); break;
    case ReduceOp::kMax: result = tree([](T a, T b) { return std::max(a, b); }); break;
    case ReduceOp::kProduct:
      result = tree([](T a, T b) {
        // Unsigned 64-bit products wrap, and no operand is promoted to int.
        if constexpr (std::is_integral_v<T>) {
          return static_cast<T>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
        }
        return static_cast<T>(a * b);
      });
      break;
    case ReduceOp::kAdasum: break;  // see adasum_test.cc
  }
  return Multiplied(result, arithmetic.scale.after);
}

// Values so small that a sum of a few does not overflow, but large enough that a scale of 3 does.
template <typename T>
T SomeValue(std::mt19937_64& random) {
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(static_cast<T>(random()) / 8);
  } else {
    return static_cast<T>(static_cast<double>(random() % 200001) / 1000 - 100);
  }
}

const Arithmetic kArithmetics[] = {
    {},
    {.scale = {.before = 0.25, .after = 1}},
    {.scale = {.before = 1, .after = 0.7}},
    {.scale = {.before = 3, .after = 5}},
    {.scale = {.before = -0.6, .after = 1.5}},
    {.divisor = 7},
    {.divisor = 300, .scale = {.before = 0.9, .after = 2}},
};

TEMPLATE_TEST_CASE(
    "every arithmetic gives the result of plain C++ for each element", "", uint8_t, int8_t,
    uint16_t, int16_t, uint32_t, int32_t, uint64_t, int64_t, float, double) {
  std::mt19937_64 random(3);
  const DType dtype = dtrun::detail::DTypeOf<TestType>();
  for (size_t ranks = 1; ranks <= 9; ++ranks) {
    const size_t count = 70;
    std::vector<std::vector<TestType>> inputs(ranks, std::vector<TestType>(count));
    for (auto& input : inputs) {
      for (TestType& value : input) value = SomeValue<TestType>(random);
    }
    for (const ReduceOp op : kOps) {
      for (Arithmetic arithmetic : kArithmetics) {
        arithmetic.op = op;
        CAPTURE(NameOf(op), ranks, arithmetic.scale.before, arithmetic.scale.after);
        const auto result = Reduced<TestType>(inputs, dtype, arithmetic);
        for (size_t i = 0; i < count; ++i) {
          std::vector<TestType> values;
          for (const auto& input : inputs) values.push_back(input[i]);
          REQUIRE(result[i] == OneElement(values, arithmetic));
        }
      }
    }
  }
}

template <typename To, typename From>
std::vector<To> Converted(
    const InstructionSet& set, const std::vector<From>& input, DType from, DType to) {
  std::vector<To> output(input.size());
  dtrun::ops::ConvertWith(set, input.data(), from, output.data(), to, input.size());
  return output;
}

TEST_CASE("16-bit floats are reduced in f32 and rounded once with every scale and divisor") {
  std::mt19937_64 random(5);
  const InstructionSet set = InstructionSetsHere().front();
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    for (size_t ranks = 1; ranks <= 9; ++ranks) {
      const size_t count = 77;
      std::vector<std::vector<uint16_t>> inputs;
      std::vector<std::vector<float>> wide;
      for (size_t k = 0; k < ranks; ++k) {
        std::vector<float> values(count);
        for (float& value : values) value = SomeValue<float>(random) / 16;
        inputs.push_back(Converted<uint16_t>(set, values, DType::kF32, dtype));
        wide.push_back(Converted<float>(set, inputs.back(), dtype, DType::kF32));
      }
      for (const ReduceOp op : kOps) {
        for (Arithmetic arithmetic : kArithmetics) {
          arithmetic.op = op;
          CAPTURE(NameOf(dtype), NameOf(op), ranks, arithmetic.scale.before);
          const auto in_f32 = Reduced<float>(wide, DType::kF32, arithmetic);
          REQUIRE(
              Reduced<uint16_t>(inputs, dtype, arithmetic) ==
              Converted<uint16_t>(set, in_f32, DType::kF32, dtype));
        }
      }
    }
  }
}

// Computes the value of a 16-bit float from its fields.
float ValueOf(uint16_t bits, int mantissa_bits) {
  const int exponent_bits = 15 - mantissa_bits, bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = (bits & 0x7fff) >> mantissa_bits;
  const int mantissa = bits & ((1 << mantissa_bits) - 1);
  double value;
  if (exponent == (1 << exponent_bits) - 1) {
    value = mantissa == 0 ? INFINITY : NAN;
  } else if (exponent == 0) {
    value = std::ldexp(mantissa, 1 - bias - mantissa_bits);
  } else {
    value = std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
  }
  return static_cast<float>((bits & 0x8000) != 0 ? -value : value);
}

TEST_CASE("conversion widens all 16-bit floats exactly and narrows them back") {
  std::vector<uint16_t> all(65536);
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
  for (const InstructionSet& set : InstructionSetsHere()) {
    for (const DType dtype : {DType::kF16, DType::kBF16}) {
      CAPTURE(set.name, NameOf(dtype));
      const auto wide = Converted<float>(set, all, dtype, DType::kF32);
      const auto narrow = Converted<uint16_t>(set, wide, DType::kF32, dtype);
      for (size_t i = 0; i < all.size(); ++i) {
        const float expected = ValueOf(all[i], dtype == DType::kF16 ? 10 : 7);
        if (std::isnan(expected)) {
          REQUIRE(std::isnan(wide[i]));
          REQUIRE(std::isnan(ValueOf(narrow[i], dtype == DType::kF16 ? 10 : 7)));
        } else {
          REQUIRE(std::memcmp(&wide[i], &expected, sizeof expected) == 0);  // -0 differs from 0
          REQUIRE(narrow[i] == all[i]);
        }
      }
    }
  }
}

TEST_CASE("conversion rounds to nearest with ties to even") {
  for (const InstructionSet& set : InstructionSetsHere()) {
    for (const DType dtype : {DType::kF16, DType::kBF16}) {
      const int mantissa_bits = dtype == DType::kF16 ? 10 : 7;
      const uint16_t infinity = dtype == DType::kF16 ? 0x7c00 : 0x7f80;
      std::vector<float> values;
      std::vector<uint16_t> expected;
      for (uint16_t low = 0; low < infinity; ++low) {
        const auto high = static_cast<uint16_t>(low + 1);
        // The step beyond the largest number is as long as the step before it.
        const double upper =
            high == infinity ? 2.0 * ValueOf(low, mantissa_bits) - ValueOf(low - 1, mantissa_bits)
                             : ValueOf(high, mantissa_bits);
        const auto middle = static_cast<float>((ValueOf(low, mantissa_bits) + upper) / 2);
        values.insert(
            values.end(),
            {std::nextafter(middle, 0.0f), middle, std::nextafter(middle, INFINITY), -middle});
        const uint16_t even = low % 2 == 0 ? low : high;
        expected.insert(expected.end(), {low, even, high, static_cast<uint16_t>(even | 0x8000)});
      }
      CAPTURE(set.name, NameOf(dtype));
      CHECK(Converted<uint16_t>(set, values, DType::kF32, dtype) == expected);
    }
  }
}

TEST_CASE("conversion between any other pair of types is refused") {
  float value = 0;
  try {
    dtrun::ops::Convert(&value, DType::kF32, &value, DType::kI32, 1);
    FAIL("no error");
  } catch (const dtrun::Error& error) {
    CHECK(error.code() == dtrun::ErrorCode::kInvalidArgument);
  }
}

TEST_CASE("infinity plus a number is infinity and opposite infinities add up to NaN") {
  const float inf = std::numeric_limits<float>::infinity();
  const auto sum = Reduced<float>({{inf, inf, 1}, {1, -inf, 2}}, DType::kF32, {});
  CHECK(sum[0] == inf);
  CHECK(std::isnan(sum[1]));
  CHECK(sum[2] == 3);
}

// Three inputs and four outputs in one block of memory. Two outputs are also inputs. The bytes
// between the arrays are 0xee.
TEST_CASE("stores write exactly the outputs at every offset with cached and streaming stores") {
  constexpr size_t kRow = 2048;  // elements
  for (const InstructionSet& set : InstructionSetsHere()) {
    for (const Stores stores : {Stores::kCached, Stores::kStreaming}) {
      for (const size_t offset : {0, 1, 3, 16, 17}) {
        for (const size_t count : {1, 31, 32, 33, 64, 500, 1500}) {
          CAPTURE(set.name, offset, count);
          alignas(64) static float rows[5][kRow];
          std::memset(rows, 0xee, sizeof rows);
          float untouched;
          std::memcpy(&untouched, &rows[0][0], sizeof untouched);
          for (size_t i = 0; i < count; ++i) {
            for (size_t k = 0; k < 3; ++k) rows[k][offset + i] = static_cast<float>(i * (k + 1));
          }
          const void* inputs[] = {rows[0] + offset, rows[1] + offset, rows[2] + offset};
          void* outputs[] = {
              rows[3] + offset, rows[0] + offset, rows[4] + offset, rows[2] + offset};
          dtrun::ops::ReduceWith(
              set, inputs, 3, outputs, 4, count, DType::kF32, {.stores = stores});
          for (const size_t row : {0, 2, 3, 4}) {
            for (size_t i = 0; i < kRow; ++i) {
              const bool inside = i >= offset && i < offset + count;
              const float expected = inside ? static_cast<float>(6 * (i - offset)) : untouched;
              REQUIRE(rows[row][i] == expected);
            }
          }
          CHECK(rows[1][offset + count - 1] == static_cast<float>(2 * (count - 1)));
        }
      }
    }
  }
}

TEST_CASE("streaming stores give the same bits for every dtype and op and number of inputs") {
  std::mt19937_64 random(13);
  for (const InstructionSet& set : InstructionSetsHere()) {
    for (const DType dtype : kDTypes) {
      for (const size_t ranks : {1, 2, 4, 9}) {
        const size_t count = 1000 + random() % 1000;
        std::vector<Bytes> inputs;
        for (size_t k = 0; k < ranks; ++k) inputs.push_back(RandomElements(dtype, count, random));
        std::vector<const void*> pointers;
        for (const Bytes& input : inputs) pointers.push_back(input.data());
        for (const ReduceOp op : kOps) {
          alignas(64) static unsigned char streamed[2000 * 8];
          void* output = streamed;
          dtrun::ops::ReduceWith(
              set, pointers.data(), static_cast<int>(ranks), &output, 1, count, dtype,
              {.op = op, .stores = Stores::kStreaming});
          Bytes expected(count * SizeOf(dtype));
          ReduceRange(set, inputs, dtype, {.op = op}, 0, count, expected);
          CAPTURE(set.name, NameOf(dtype), NameOf(op), ranks);
          const Bytes stored(streamed, streamed + expected.size());
          REQUIRE(WithOneNaN(stored, dtype) == WithOneNaN(expected, dtype));
        }
      }
    }
  }
}

TEST_CASE("a thread that flushes denormals and rounds up computes the same bits as its peers") {
  const float tiny = std::numeric_limits<float>::denorm_min();
  const std::vector<uint16_t> least_half = {1};
  const unsigned before = _mm_getcsr();
  _mm_setcsr(before | 0x8040 | _MM_ROUND_UP);
  const unsigned unusual = _mm_getcsr();
  const auto sum = Reduced<float>({{tiny, 1}, {tiny, 1e-9f}}, DType::kF32, {});
  const auto halves = Reduced<uint16_t>({least_half, least_half}, DType::kF16, {});
  const unsigned after = _mm_getcsr();
  _mm_setcsr(before);
  CHECK(sum[0] == 2 * tiny);
  CHECK(sum[1] == 1);
  CHECK(halves[0] == 2);
  CHECK(after == unusual);  // the caller's mode is restored
}

TEST_CASE("a copy writes exactly its bytes at every offset and size") {
  std::vector<unsigned char> from(3000);
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<unsigned char>(i * 7 + 1);
  for (const InstructionSet& set : InstructionSetsHere()) {
    for (const Stores stores : {Stores::kCached, Stores::kStreaming}) {
      for (const size_t begin : {0, 1, 63, 64, 65}) {
        for (const size_t bytes : {0, 1, 63, 64, 65, 127, 128, 200, 2000}) {
          alignas(64) unsigned char to[3000];
          std::memset(to, 0xee, sizeof to);
          dtrun::ops::CopyWith(set, to + begin, from.data() + 5, bytes, stores);
          CAPTURE(set.name, begin, bytes);
          for (size_t i = 0; i < sizeof to; ++i) {
            const bool inside = i >= begin && i < begin + bytes;
            REQUIRE(to[i] == (inside ? from[i - begin + 5] : 0xee));
          }
        }
      }
    }
  }
}

}  // namespace
