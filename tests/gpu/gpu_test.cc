// The contracts of gpu/ on a real or a simulated GPU, and the simulator's support of the features
// that kernels need.

#include <catch2/catch.hpp>
#include <chrono>
#include <cstring>
#include <numeric>
#include <thread>
#include <vector>

#include "dtrun/error.h"
#include "gpu/driver.h"
#include "gpu/gpu_device.h"
#include "gpu/memory.h"
#include "gpu/stream.h"
#include "tests/gpu_simulator/graph.h"
#include "tests/gpu_simulator/test_kernels.h"

extern "C" const unsigned long long dtrun_test_kernels[];

namespace dtrun::testing {
namespace {

using gpu::Device;
using gpu::DeviceMemory;
using gpu::DeviceScope;
using gpu::Stream;

gpu::Kernels& TestKernels() {
  static gpu::Kernels kernels(dtrun_test_kernels, "test kernels");
  return kernels;
}

template <typename T>
DeviceMemory Upload(const Stream& stream, const std::vector<T>& values) {
  DeviceMemory memory(stream.device(), values.size() * sizeof(T));
  const DeviceScope scope(stream.device());
  gpu::CopyToDevice(memory.address(), values.data(), memory.bytes(), stream.get());
  stream.Synchronize();
  return memory;
}

template <typename T>
std::vector<T> Download(const Stream& stream, const DeviceMemory& memory) {
  std::vector<T> values(memory.bytes() / sizeof(T));
  const DeviceScope scope(stream.device());
  gpu::CopyToHost(values.data(), memory.address(), memory.bytes(), stream.get());
  stream.Synchronize();
  return values;
}

TEST_CASE("a device has the properties of its driver and new memory is zero") {
  const Device& device = Device::Get(0);
  CHECK(gpu::DeviceCount() >= 1);
  CHECK(device.name() != "");
  CHECK(device.multiprocessors() > 0);
  CHECK(&Device::Get(0) == &device);
  CHECK(device.Memory().free <= device.Memory().total);
  Stream stream(device);
  const DeviceMemory memory(device, 1000);
  CHECK(memory.address() % 256 == 0);
  CHECK(Download<char>(stream, memory) == std::vector<char>(1000, 0));
  CHECK_THROWS_WITH(
      Device::Get(gpu::DeviceCount()), Catch::Matchers::StartsWith("there is no GPU ") &&
                                           Catch::Matchers::Contains("expected a number from 0"));
}

TEST_CASE("memory that does not fit is refused with the needed and the free bytes") {
  const Device& device = Device::Get(0);
  const uint64_t before = gpu::MemoryTaken(0);
  const uint64_t too_much = device.Memory().total + 1;
  CHECK_THROWS_WITH(
      DeviceMemory(device, too_much),
      Catch::Matchers::Contains("no room for " + std::to_string(too_much) + " bytes") &&
          Catch::Matchers::Contains("bytes are free"));
  CHECK(gpu::MemoryTaken(0) == before);
  gpu::SetMemoryLimit(before + 4096);
  {
    const DeviceMemory fits(device, 4096);
    CHECK(gpu::MemoryTaken(0) == before + 4096);
    CHECK_THROWS_WITH(
        DeviceMemory(device, 1), Catch::Matchers::Contains("this process may take 0 more"));
  }
  gpu::SetMemoryLimit(0);
  CHECK(gpu::MemoryTaken(0) == before);
}

TEST_CASE("kernels can loop and reduce and use shared memory and convert types") {
  const Device& device = Device::Get(0);
  Stream stream(device);
  std::vector<float> values(10'007);
  std::iota(values.begin(), values.end(), 1.0f);
  const DeviceMemory memory = Upload(stream, values);
  TestKernels().Launch(
      device, "dtrun_test_scale", {.blocks = 7, .threads = 128}, stream.get(),
      ScaleArgs{memory.as<float>(), values.size(), 0.5f});
  for (float& value : values) value *= 0.5f;
  CHECK(Download<float>(stream, memory) == values);

  const DeviceMemory sums(device, 5 * sizeof(float));
  TestKernels().Launch(
      device, "dtrun_test_sum", {.blocks = 5, .threads = 256}, stream.get(),
      SumArgs{memory.as<float>(), values.size(), sums.as<float>()});
  const std::vector<float> parts = Download<float>(stream, sums);
  CHECK(
      std::accumulate(parts.begin(), parts.end(), 0.0) ==
      Approx(std::accumulate(values.begin(), values.end(), 0.0)).epsilon(1e-6));

  const uint32_t threads = GENERATE(32, 96, 1024);
  std::vector<uint32_t> numbers(3 * threads);
  std::iota(numbers.begin(), numbers.end(), 0u);
  const DeviceMemory rotated = Upload(stream, numbers);
  TestKernels().Launch(
      device, "dtrun_test_rotate", {.blocks = 3, .threads = threads}, stream.get(),
      RotateArgs{rotated.as<uint32_t>(), 5});
  for (uint32_t i = 0; i < numbers.size(); ++i)
    numbers[i] = i / threads * threads + (i % threads + 5) % threads;
  CHECK(Download<uint32_t>(stream, rotated) == numbers);

  const std::vector<float> floats = {1.0f, -2.5f, 65504.0f, 1e-8f, 3.14159f};
  const DeviceMemory from = Upload(stream, floats), bf16(device, 10), f16(device, 10);
  TestKernels().Launch(
      device, "dtrun_test_halves", {}, stream.get(),
      HalfArgs{from.as<float>(), bf16.as<uint16_t>(), f16.as<uint16_t>(), floats.size()});
  CHECK(
      Download<uint16_t>(stream, bf16) ==
      std::vector<uint16_t>{0x3F80, 0xC020, 0x4780, 0x322C, 0x4049});
  CHECK(
      Download<uint16_t>(stream, f16) ==
      std::vector<uint16_t>{0x3C00, 0xC100, 0x7BFF, 0x0000, 0x4248});
}

TEST_CASE("an unknown kernel is named in the error") {
  const Device& device = Device::Get(0);
  CHECK_THROWS_WITH(
      TestKernels().Find(device, "dtrun_test_nothing"),
      Catch::Matchers::Contains("dtrun_test_nothing") && Catch::Matchers::Contains("NOT_FOUND"));
}

TEST_CASE("kernels of two streams can wait for each other") {
  const Device& device = Device::Get(0);
  Stream a(device), b(device);
  const DeviceMemory flags(device, 8);
  const DeviceMemory x = Upload<float>(a, {1}), y = Upload<float>(a, {10});
  auto* flag = flags.as<uint32_t>();
  for (uint32_t epoch = 1; epoch <= 3; ++epoch) {
    TestKernels().Launch(
        device, "dtrun_test_meet", {.threads = 64}, a.get(),
        MeetArgs{flag, flag + 1, epoch, x.as<float>(), y.as<float>()});
    TestKernels().Launch(
        device, "dtrun_test_meet", {.threads = 64}, b.get(),
        MeetArgs{flag + 1, flag, epoch, y.as<float>(), y.as<float>()});
    a.Synchronize();
    b.Synchronize();
  }
  // y doubles in each epoch, before or after x has read it.
  CHECK(Download<float>(a, y)[0] == 80);
  CHECK(Download<float>(a, x)[0] >= 71);
}

TEST_CASE("a thread copies pageable memory while the stream waits for another thread's kernel") {
  const Device& device = Device::Get(0);
  Stream a(device), b(device);
  const DeviceMemory flags(device, 8), x = Upload<float>(a, {1}), y = Upload<float>(a, {10});
  TestKernels().Find(device, "dtrun_test_meet");
  auto* flag = flags.as<uint32_t>();
  TestKernels().Launch(
      device, "dtrun_test_meet", {.threads = 64}, a.get(),
      MeetArgs{flag, flag + 1, 1, x.as<float>(), y.as<float>()});
  std::thread copies([&] { CHECK(Download<float>(a, x)[0] >= 11); });
  std::this_thread::sleep_for(std::chrono::milliseconds(100));  // until the copy waits
  TestKernels().Launch(
      device, "dtrun_test_meet", {.threads = 64}, b.get(),
      MeetArgs{flag + 1, flag, 1, y.as<float>(), y.as<float>()});
  copies.join();
}

TEST_CASE("events order streams and a graph repeats the captured work") {
  const Device& device = Device::Get(0);
  Stream stream(device), other(device);
  const DeviceMemory memory = Upload<float>(stream, {3});
  const DeviceScope scope(device);
  gpu::Event fork(device), join(device);
  const auto scale = [&](const Stream& on, float factor) {
    TestKernels().Launch(
        device, "dtrun_test_scale", {.threads = 32}, on.get(),
        ScaleArgs{memory.as<float>(), 1, factor});
  };
  TestKernels().Find(device, "dtrun_test_scale");
  const gpu::Graph graph(stream, [&] {
    CHECK(gpu::IsCapturing(stream.get()));
    scale(stream, 2);
    fork.Record(stream.get());
    fork.Delay(other.get());
    CHECK(gpu::IsCapturing(other.get()));
    scale(other, 5);
    join.Record(other.get());
    join.Delay(stream.get());
  });
  CHECK_FALSE(gpu::IsCapturing(stream.get()));
  CHECK(Download<float>(stream, memory)[0] == 3);
  graph.Launch(stream.get());
  graph.Launch(stream.get());
  CHECK(Download<float>(stream, memory)[0] == 300);

  gpu::Event begin(device, gpu::Event::Timing::kOn), end(device, gpu::Event::Timing::kOn);
  begin.Record(stream.get());
  scale(stream, 2);
  end.Record(stream.get());
  end.Delay(other.get());
  scale(other, 0.5f);
  other.Synchronize();
  CHECK(end.Reached());
  CHECK(end.MillisecondsSince(begin) >= 0);
  CHECK(Download<float>(other, memory)[0] == 300);
}

TEST_CASE(
    "work that a graph cannot hold ends the capture with an error and a later capture works") {
  const Device& device = Device::Get(0);
  Stream stream(device), other(device);
  CHECK_THROWS_AS(gpu::Graph(stream, [&] { DeviceMemory(device, 16); }), Error);
  gpu::Event fork(device);
  CHECK_THROWS_AS(
      gpu::Graph(
          stream,
          [&] {
            fork.Record(stream.get());
            fork.Delay(other.get());
            gpu::Fill(0, 0, 0, other.get());
            const DeviceMemory* nothing = nullptr;
            static_cast<void>(nothing);
            TestKernels().Launch(
                device, "dtrun_test_scale", {}, other.get(), ScaleArgs{nullptr, 0, 1});
          }),
      Error);
  const DeviceMemory memory = Upload<float>(stream, {1});
  TestKernels().Find(device, "dtrun_test_scale");
  const gpu::Graph graph(stream, [&] {
    TestKernels().Launch(
        device, "dtrun_test_scale", {}, stream.get(), ScaleArgs{memory.as<float>(), 1, 4});
  });
  const DeviceScope scope(device);
  graph.Launch(stream.get());
  CHECK(Download<float>(stream, memory)[0] == 4);
}

TEST_CASE("device memory can be moved and pinned memory starts as zeros") {
  const Device& device = Device::Get(0);
  DeviceMemory a(device, 64), b;
  const CUdeviceptr address = a.address();
  b = std::move(a);
  CHECK(b.address() == address);
  CHECK_FALSE(a);
  gpu::PinnedMemory pinned(device, 128);
  CHECK(pinned.as<char>()[127] == 0);
}

}  // namespace
}  // namespace dtrun::testing
