#include "ops/reduce/reduce.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

namespace {

using dtrun::DType;
using dtrun::ReduceOp;
using dtrun::ops::Arithmetic;

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

TEST_CASE("floats are summed in a balanced tree over the ranks") {
  // 2^24 + 1 is not a float: a sum from left to right would lose every 1.
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
  // 256 + 1 rounds back to 256 in bf16, so that rounding after each addition would end at 256.
  const uint16_t k256 = 0x4380, k1 = 0x3f80;
  CHECK(
      FromBF16(Reduced<uint16_t>(
          {{k256}, {k1}, {k1}, {k1}}, DType::kBF16, {.op = ReduceOp::kSum})[0]) == 260.0f);
}

TEST_CASE("f16 survives every kind of number") {
  // Adding zero to each of the 65,536 halves gives the same half: widening is exact and narrowing
  // its inverse.
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
  // 2048 + 1 lies between two halves: to even. 65504 + 32 is beyond the largest one.
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

TEST_CASE("bools: sum and max are or, product and min are and") {
  const std::vector<std::vector<uint8_t>> inputs = {{0, 0, 1, 1}, {0, 1, 0, 1}};
  const std::vector<uint8_t> either = {0, 1, 1, 1}, both = {0, 0, 0, 1};
  CHECK(Reduced(inputs, DType::kBool, {.op = ReduceOp::kSum}) == either);
  CHECK(Reduced(inputs, DType::kBool, {.op = ReduceOp::kMax}) == either);
  CHECK(Reduced(inputs, DType::kBool, {.op = ReduceOp::kProduct}) == both);
  CHECK(Reduced(inputs, DType::kBool, {.op = ReduceOp::kMin}) == both);
}

TEST_CASE("outputs may be the inputs, at every count around a block") {
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

TEST_CASE("every input is scaled before, and the result after the reduction") {
  // 0.1 is not a float: the factors are rounded to the type first, and each product is.
  const float third = 1.0f / 3.0f, tenth = 0.1f, seven = 7.0f;
  CHECK(
      Reduced<float>({{third}, {seven}}, DType::kF32, {.scale = {.before = 0.1, .after = 3}})[0] ==
      (third * tenth + seven * tenth) * 3.0f);
  CHECK(
      Reduced<double>({{0.3}, {7}}, DType::kF64, {.scale = {.before = 0.1, .after = 3}})[0] ==
      (0.3 * 0.1 + 7 * 0.1) * 3);
  // Each input is truncated on its own: 2 + 2, not 5.
  CHECK(Reduced<int32_t>({{5}, {5}}, DType::kI32, {.scale = {.before = 0.5, .after = 1}})[0] == 4);
  CHECK(
      Reduced<int32_t>({{-5}, {0}}, DType::kI32, {.scale = {.before = 1, .after = 0.5}})[0] == -2);
}

TEST_CASE("an average divides by the number of inputs or by what it is told") {
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
  const int64_t odd = (1ll << 53) + 1;  // no f64
  CHECK(Reduced<int64_t>({{odd}}, DType::kI64, {.scale = {.before = 1, .after = 1}})[0] == odd);
  CHECK(
      Reduced<int64_t>({{odd}}, DType::kI64, {.scale = {.before = 1, .after = 0.5}})[0] ==
      (1ll << 52));
}

}  // namespace
