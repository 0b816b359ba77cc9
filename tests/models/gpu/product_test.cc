// Matrix products against their definition in f64.

#include "models/gpu/product.h"

#include <dtrun/error.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "tests/models/gpu/kernel_rig.h"
#include "tests/support/text.h"

namespace dtrun::testing {
namespace {

using namespace models;  // NOLINT: their names are the subject

struct ProductType {
  Typed typed;
  DType dtype;
};

ProductType AnyProductType() {
  return GENERATE(
      ProductType{{"f32", 4, 1e-6}, DType::kF32}, ProductType{{"bf16", 2, 4e-3}, DType::kBF16},
      ProductType{{"f16", 2, 5e-4}, DType::kF16});
}

const gpu::DeviceMemory& SomeWorkspace() {
  static const auto& memory = *new gpu::DeviceMemory(TestStream().device(), 1 << 20);
  return memory;
}

bool IsSimulated() { return TestStream().device().name() == "simulated GPU"; }

// Returns false and logs the reason if a real cuBLASLt lacks the product. The simulated cuBLASLt
// has all products.
bool Multiply(const Product::Options& options) {
  try {
    Product product(TestStream(), options, {SomeWorkspace().as<void>(), SomeWorkspace().bytes()});
    product.Enqueue();
  } catch (const Error& error) {
    if (IsSimulated() || error.code() != ErrorCode::kUnavailable) throw;
    WARN("SKIPPED: " << error.what());
    return false;
  }
  TestStream().Synchronize();
  return true;
}

// (5, 24) times (24, 136).
constexpr size_t kRows = 5, kDepth = 24, kColumns = 136;

Doubles Definition(const Doubles& a, const Doubles& b) {
  Doubles c(kRows * kColumns);
  for (size_t i = 0; i < kRows; ++i)
    for (size_t j = 0; j < kColumns; ++j)
      for (size_t k = 0; k < kDepth; ++k)
        c[i * kColumns + j] += a[i * kDepth + k] * b[k * kColumns + j];
  return c;
}

struct Factors {
  Doubles a = MadeUp(kRows * kDepth, 1), b = MadeUp(kDepth * kColumns, 2);
  gpu::DeviceMemory on_device_a, on_device_b, c;
  Product::Options options;

  explicit Factors(const ProductType& type)
      : on_device_a(type.typed.ToDevice(a)),
        on_device_b(type.typed.ToDevice(b)),
        c(type.typed.Zeros(kRows * kColumns)) {
    options.a = {on_device_a.as<void>(), kRows, kDepth, type.dtype};
    options.b = {on_device_b.as<void>(), kDepth, kColumns, type.dtype};
    options.c = {c.as<void>(), kRows, kColumns, type.dtype};
    options.tf32 = Tf32::kOff;
  }
};

TEST_CASE("a product matches f64") {
  const ProductType type = AnyProductType();
  Factors factors(type);
  if (!Multiply(factors.options)) return;
  const Doubles expected = Definition(factors.a, factors.b);
  CheckNear(type.typed.ToHost(factors.c, expected.size()), expected, type.typed.tolerance);
}

// The gradient of a dense layer's kernel is computed this way.
TEST_CASE("a product of a transposed matrix into f32 matches f64") {
  const ProductType type = AnyProductType();
  const size_t rows = 70, in = 24, out = 40;
  const Doubles x = MadeUp(rows * in, 4), dy = MadeUp(rows * out, 5);
  const auto inputs = type.typed.ToDevice(x), gradients = type.typed.ToDevice(dy);
  const auto kernel = Upload(std::vector<float>(in * out));
  Matrix transposed{inputs.as<void>(), rows, in, type.dtype};
  transposed.transposed = true;
  const Product::Options options{
      .a = transposed,
      .b = {gradients.as<void>(), rows, out, type.dtype},
      .c = {kernel.as<void>(), in, out, DType::kF32},
      .tf32 = Tf32::kOff};
  if (!Multiply(options)) return;
  Doubles expected(in * out);
  for (size_t row = 0; row < rows; ++row)
    for (size_t o = 0; o < out; ++o)
      for (size_t i = 0; i < in; ++i) expected[i * out + o] += x[row * in + i] * dy[row * out + o];
  CheckNear(Download<float>(kernel, in * out), expected, 1e-6);
}

TEST_CASE("partial sums are not rounded to the type of the result") {
  Factors factors({{"bf16", 2, 0}, DType::kBF16});
  // The halves of each sum are 252 and -251.875. bf16 cannot represent -251.875.
  for (double& each : factors.a) each = 1;
  for (size_t k = 0; k < kDepth; ++k)
    for (size_t j = 0; j < kColumns; ++j)
      factors.b[k * kColumns + j] = k + 1 == kDepth ? -20.875 : k < kDepth / 2 ? 21 : -21;
  const Typed bf16{"bf16", 2, 0};
  const auto a = bf16.ToDevice(factors.a), b = bf16.ToDevice(factors.b);
  factors.options.a.data = a.as<void>();
  factors.options.b.data = b.as<void>();
  if (!Multiply(factors.options)) return;
  CHECK(bf16.ToHost(factors.c, kRows * kColumns) == Doubles(kRows * kColumns, 0.125));
}

TEST_CASE("the first product of a kind tries algorithms and the next product reuses the choice") {
  const Typed type{"f32", 4, 1e-6};
  const Selection selection = GENERATE(Selection::kFirst, Selection::kFastest);
  const uint64_t rows = 6, depth = 8, columns = 24;  // sizes that no other test uses
  const auto a = type.ToDevice(MadeUp(rows * depth, 1)),
             b = type.ToDevice(MadeUp(depth * columns, 2));
  const Doubles untouched(rows * columns, 77);
  const auto first = type.ToDevice(untouched), second = type.ToDevice(untouched);
  const auto make = [&](const gpu::DeviceMemory& c) {
    return std::make_unique<Product>(
        TestStream(),
        Product::Options{
            .a = {a.as<void>(), rows, depth},
            .b = {b.as<void>(), depth, columns},
            .c = {c.as<void>(), rows, columns},
            .selection = selection},
        Workspace{SomeWorkspace().as<void>(), SomeWorkspace().bytes()});
  };
  const auto tried = make(first), next = make(second);
  TestStream().Synchronize();
  CHECK(type.ToHost(first, untouched.size()) != untouched);
  CHECK(type.ToHost(second, untouched.size()) == untouched);
  tried->Enqueue();
  next->Enqueue();
  TestStream().Synchronize();
  CHECK(type.ToHost(first, untouched.size()) == type.ToHost(second, untouched.size()));
}

TEST_CASE("a matrix may start at a multiple of 16 bytes and a workspace at a multiple of 256") {
  const ProductType type = AnyProductType();
  Factors factors(type);
  const size_t off = 16 / type.typed.size;
  Doubles longer(off);
  longer.insert(longer.end(), factors.b.begin(), factors.b.end());
  const auto b = type.typed.ToDevice(longer);
  const auto c = type.typed.Zeros(off + kRows * kColumns);
  factors.options.b.data = b.as<uint8_t>() + 16;
  factors.options.c.data = c.as<uint8_t>() + 16;
  if (!Multiply(factors.options)) return;
  Doubles expected(off);
  for (const double each : Definition(factors.a, factors.b)) expected.push_back(each);
  CheckNear(type.typed.ToHost(c, expected.size()), expected, type.typed.tolerance);
  const auto make = [&] {
    Product(TestStream(), factors.options, {SomeWorkspace().as<uint8_t>() + 64, 1024});
  };
  CHECK_THROWS_WITH(make(), "a product's workspace does not begin at a multiple of 256 bytes");
}

}  // namespace
}  // namespace dtrun::testing
