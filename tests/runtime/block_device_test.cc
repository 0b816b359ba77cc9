// Blocks on a real or simulated GPU, compared with the same blocks in host memory.

#include "runtime/device/block_device.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <vector>

#include "gpu/memory.h"
#include "gpu/stream.h"

namespace dtrun::testing {
namespace {

// A stream of a GPU, and copies of host buffers there.
class Gpu {
 public:
  Buffer Place(const Buffer& host) {
    memory_.push_back(
        std::make_unique<gpu::DeviceMemory>(stream_.device(), std::max<uint64_t>(host.bytes(), 1)));
    Buffer placed(memory_.back()->as<void>(), host.count, host.dtype);
    placed.device = stream_.device().index();
    placed.stream = stream_.get();
    runtime::Copy(host, placed);
    return placed;
  }

 private:
  gpu::Stream stream_{gpu::Device::Get(0)};
  std::vector<std::unique_ptr<gpu::DeviceMemory>> memory_;
};

template <typename T>
std::vector<T> MadeUp(size_t count) {
  std::vector<T> values;
  for (size_t i = 0; i < count; ++i)
    values.push_back(static_cast<T>(1e3 * std::sin(0.7 * static_cast<double>(i))));
  return values;
}

template <typename T>
Buffer Of(std::vector<T>& values) {
  return Buffer(values.data(), values.size());
}

TEST_CASE("norms on a GPU have the bits of the host") {
  Gpu gpu;
  for (const size_t count : {0, 1, 15, 4095, 4096, 4097, 100'003}) {
    INFO(count << " elements");
    std::vector<float> floats = MadeUp<float>(count), one = {3};
    std::vector<double> doubles = MadeUp<double>(count);
    const std::vector<Buffer> host = {Of(floats), Of(doubles), Of(one)};
    const std::vector<double> norms = runtime::SquaredNorms(host);
    double expected = 0;
    for (const double value : doubles) expected += value * value;
    CHECK(norms[1] == Approx(expected).epsilon(1e-12));
    CHECK(norms[2] == 9);
    CHECK(
        runtime::SquaredNorms({gpu.Place(host[0]), gpu.Place(host[1]), gpu.Place(host[2])}) ==
        norms);
    CHECK(runtime::SquaredNorms({host[0], gpu.Place(host[1]), host[2]}) == norms);
  }
}

TEST_CASE("blocks are multiplied and cleared on a GPU as on the host") {
  Gpu gpu;
  std::vector<float> floats = MadeUp<float>(5000), copy(5000), zeros(5000);
  const Buffer placed = gpu.Place(Of(floats));
  runtime::BlockDeviceOf(placed).Multiply(placed, 1 / 3.0);
  runtime::BlockDeviceOf(Of(floats)).Multiply(Of(floats), 1 / 3.0);
  runtime::Copy(placed, Of(copy));
  CHECK(copy == floats);
  runtime::BlockDeviceOf(placed).Clear(placed);
  runtime::Copy(placed, Of(copy));
  CHECK(copy == zeros);
}

TEST_CASE("the first infinite or NaN element is found in every dtype and place") {
  Gpu gpu;
  std::vector<float> floats(10'000, 1), clean(20, std::numeric_limits<float>::max());
  std::vector<double> doubles(10'000, 1e300);
  std::vector<uint16_t> halves(10'000, 0x3c00);
  std::vector<uint64_t> integers(20, ~uint64_t{0});
  Buffer f16(halves.data(), halves.size(), DType::kF16);
  Buffer bf16(halves.data(), halves.size(), DType::kBF16);
  const auto found = [&](const std::vector<Buffer>& host) {
    std::vector<Buffer> placed;
    for (const Buffer& buffer : host) placed.push_back(gpu.Place(buffer));
    const std::optional<size_t> on_host = runtime::FindNonFinite(host);
    CHECK(runtime::FindNonFinite(placed) == on_host);
    return on_host;
  };
  CHECK(found({Of(integers), Of(floats), Of(doubles), f16, bf16, Of(clean)}) == std::nullopt);
  doubles[9'999] = -std::numeric_limits<double>::infinity();
  CHECK(found({Of(integers), Of(floats), Of(doubles), f16}) == 2u);
  floats[4096] = std::nanf("");
  CHECK(found({Of(integers), Of(floats), Of(doubles)}) == 1u);
  halves[7] = 0x7c00;  // infinite in f16
  CHECK(found({Of(clean), bf16, f16}) == 2u);
  halves[8] = 0xff80;  // -infinite in bf16
  CHECK(found({Of(clean), bf16, f16}) == 1u);
}

}  // namespace
}  // namespace dtrun::testing
