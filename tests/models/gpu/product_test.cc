// Matrix products and their epilogues, each against its definition in f64.

#include "models/gpu/product.h"

#include <dtrun/error.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "models/gpu/device_network.h"
#include "models/gpu/kernel_args.h"
#include "models/gpu/network_plan.h"
#include "models/layers/activations.h"
#include "tests/models/gpu/gpu_rig.h"
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

bool IsSet(const std::vector<uint8_t>& mask, size_t row, size_t column, size_t columns) {
  return (mask[row * MaskBytes(columns) + column / 8] >> column % 8 & 1) != 0;
}

// (5, 24) times (24, 136): a row of the mask takes two of cuBLASLt's units of 128 bits.
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

TEST_CASE("a product with bias and ReLU matches f64 and stores the mask of the passed values") {
  const ProductType type = AnyProductType();
  Factors factors(type);
  const Doubles bias = MadeUp(kColumns, 3);
  const auto biases = type.typed.ToDevice(bias);
  const auto mask = Upload(std::vector<uint8_t>(kRows * MaskBytes(kColumns), 0x5A));
  factors.options.epilogue = Epilogue::kBiasReluMask;
  factors.options.bias = biases.as<void>();
  factors.options.mask = mask.as<void>();
  if (!Multiply(factors.options)) return;
  Doubles expected = Definition(factors.a, factors.b);
  const auto got = Download<uint8_t>(mask, kRows * MaskBytes(kColumns));
  size_t wrong = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double sum = expected[i] + bias[i % kColumns];
    expected[i] = std::max(sum, 0.0);
    // For sums near zero, rounding decides the mask, so the test skips them.
    if (std::abs(sum) > 1e-4 && IsSet(got, i / kColumns, i % kColumns, kColumns) != (sum > 0))
      ++wrong;
  }
  CHECK(wrong == 0);
  CheckNear(type.typed.ToHost(factors.c, expected.size()), expected, type.typed.tolerance);
}

TEST_CASE("a product applies a mask and a scale to its result") {
  const ProductType type = AnyProductType();
  Factors factors(type);
  std::vector<uint8_t> bits(kRows * MaskBytes(kColumns));
  for (size_t i = 0; i < bits.size(); ++i) bits[i] = static_cast<uint8_t>(i * 151 + 7);
  const auto mask = Upload(bits);
  factors.options.epilogue = Epilogue::kMasked;
  factors.options.mask = mask.as<void>();
  factors.options.scale = 1.25f;
  if (!Multiply(factors.options)) return;
  Doubles expected = Definition(factors.a, factors.b);
  for (size_t i = 0; i < expected.size(); ++i)
    expected[i] = IsSet(bits, i / kColumns, i % kColumns, kColumns) ? 1.25 * expected[i] : 0;
  CheckNear(type.typed.ToHost(factors.c, expected.size()), expected, type.typed.tolerance);
}

// The gradients of a dense layer's kernel and bias are computed this way.
TEST_CASE("a product into f32 also sums the columns of its second factor") {
  const ProductType type = AnyProductType();
  const size_t rows = 70, in = 24, out = 40;
  const Doubles x = MadeUp(rows * in, 4), dy = MadeUp(rows * out, 5);
  const auto inputs = type.typed.ToDevice(x), gradients = type.typed.ToDevice(dy);
  const auto kernel = Upload(std::vector<float>(in * out)), bias = Upload(std::vector<float>(out));
  Matrix transposed{inputs.as<void>(), rows, in, type.dtype};
  transposed.transposed = true;
  const Product::Options options{
      .a = transposed,
      .b = {gradients.as<void>(), rows, out, type.dtype},
      .c = {kernel.as<void>(), in, out, DType::kF32},
      .epilogue = Epilogue::kSums,
      .sums = bias.as<void>(),
      .tf32 = Tf32::kOff};
  if (!Multiply(options)) return;
  Doubles expected(in * out), sums(out);
  for (size_t row = 0; row < rows; ++row) {
    for (size_t o = 0; o < out; ++o) {
      sums[o] += dy[row * out + o];
      for (size_t i = 0; i < in; ++i) expected[i * out + o] += x[row * in + i] * dy[row * out + o];
    }
  }
  const auto as_doubles = [](const std::vector<float>& from) {
    return Doubles(from.begin(), from.end());
  };
  CheckNear(as_doubles(Download<float>(kernel, in * out)), expected, 1e-6);
  CheckNear(as_doubles(Download<float>(bias, out)), sums, 1e-6);
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

// ---- The backward pass through hidden dense layers ----------------------------------------------

// The gradients of one step by parameter, and the network's choices.
struct DenseStep {
  std::vector<std::vector<float>> gradients;
  std::string choices;
};

DenseStep StepOf(Sequential& model, const Images& images, uint64_t step, Fusion fusion) {
  const auto rows = static_cast<uint32_t>(images.count);
  const NetworkPlan plan = PlanNetwork(model, 5);
  DeviceNetwork network(
      TestStream(), plan,
      {.tf32 = Tf32::kOff, .rows = rows, .workspace_bytes = 1 << 20, .fusion = fusion});
  std::vector<float> flat(plan.parameter_count);
  for (size_t i = 0; i < plan.parameters.size(); ++i) {
    const ParameterPlace& place = plan.parameters[i];
    place.ToDevice(
        static_cast<const float*>(model.parameters()[i].value.data), flat.data() + place.offset);
  }
  const gpu::DeviceScope scope(TestStream().device());
  gpu::CopyToDevice(
      gpu::AddressOf(network.values()), flat.data(), flat.size() * sizeof(float),
      TestStream().get());
  const auto pixels = Upload(images.pixels), labels = Upload(images.labels);
  StepState state;
  state.now.step = step;
  state.now.images = pixels.as<uint8_t>();
  state.now.labels = labels.as<uint8_t>();
  state.now.examples = rows;
  state.now.loss_factor = 1.0f / static_cast<float>(rows);
  const auto states = Upload(std::vector<StepState>{state});
  RunKernel(
      "dtrun_gather_f32", 2,
      GatherArgs{
          states.as<StepState>(), network.inputs(), network.wanted(), rows,
          static_cast<uint32_t>(plan.input.count())});
  network.EnqueueForward(DeviceNetwork::Mode::kTraining, states.as<StepState>());
  network.EnqueueLoss(DeviceNetwork::Mode::kTraining, states.as<StepState>(), nullptr);
  network.EnqueueBackward();
  gpu::CopyToHost(
      flat.data(), gpu::AddressOf(network.gradients()), flat.size() * sizeof(float),
      TestStream().get());
  TestStream().Synchronize();
  DenseStep found{{}, network.choices()};
  for (size_t i = 0; i < plan.parameters.size(); ++i) {
    found.gradients.emplace_back(model.parameters()[i].value.count);
    plan.parameters[i].ToHost(
        flat.data() + plan.parameters[i].offset, found.gradients.back().data());
  }
  return found;
}

// Two hidden layers. Dropout follows the first or the second.
CpuNetwork DenseNetwork(bool first_drops) {
  if (first_drops)
    return CpuNetwork(
        {4, 6, 1},
        Layers(
            Flatten(), Dense(256, Activation::kRelu), Dropout(0.4), Dense(16, Activation::kRelu),
            Dense(5)),
        5);
  return CpuNetwork(
      {4, 6, 1},
      Layers(
          Flatten(), Dense(256, Activation::kRelu), Dense(16, Activation::kRelu), Dropout(0.4),
          Dense(5)),
      5);
}

TEST_CASE("masks and bias gradients of dense layers match the CPU with and without fusion") {
  const bool first_drops = GENERATE(true, false);
  const Fusion fusion = GENERATE(Fusion::kAlways, Fusion::kNever);
  CpuNetwork cpu = DenseNetwork(first_drops);
  const Images images = MadeUpImages(37, 4, 6, 5);
  const auto expected = cpu.Gradients(images, FirstExamples(images.count), 3);
  const DenseStep got = StepOf(cpu.model, images, 3, fusion);
  INFO(got.choices);
  CHECK(RelativeDistance(got.gradients, expected) < 1e-5);
  const std::string chosen =
      fusion == Fusion::kNever ? "a kernel masks its gradient\n" : "cuBLASLt masks its gradient\n";
  if (IsSimulated()) CHECK(CountOf(got.choices, chosen) == 2);
}

TEST_CASE("an epilogue that cuBLASLt lacks runs as a kernel and the choice names the reason") {
  if (!IsSimulated()) {
    WARN("SKIPPED: only the simulated cuBLASLt refuses what it is told to");
    return;
  }
  const std::string refused = GENERATE("134", "136", "256");  // RELU_AUX_BIAS, DRELU, BGRADA
  CpuNetwork cpu = DenseNetwork(true);
  const Images images = MadeUpImages(37, 4, 6, 5);
  const auto expected = cpu.Gradients(images, FirstExamples(images.count), 3);
  ::setenv("DTRUN_SIMULATED_CUBLASLT_WITHOUT", refused.c_str(), 1);
  const DenseStep got = StepOf(cpu.model, images, 3, Fusion::kAlways);
  ::unsetenv("DTRUN_SIMULATED_CUBLASLT_WITHOUT");
  INFO(got.choices);
  CHECK(RelativeDistance(got.gradients, expected) < 1e-5);
  // A layer with dropout does not use RELU_AUX_BIAS.
  const size_t count = refused == "134" ? 1 : 2;
  CHECK(
      CountOf(
          got.choices, "a kernel masks its gradient: cuBLASLt has no algorithm for a product") ==
      count);
}

}  // namespace
}  // namespace dtrun::testing
