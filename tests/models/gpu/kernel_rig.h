#ifndef DTRUN_TESTS_MODELS_GPU_KERNEL_RIG_H_
#define DTRUN_TESTS_MODELS_GPU_KERNEL_RIG_H_

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "gpu/gpu_device.h"
#include "gpu/memory.h"
#include "gpu/stream.h"
#include "models/gpu/cuda_network.h"
#include "models/gpu/layer_args.h"

namespace dtrun::testing {

// Helpers to test single kernels: device memory, and values of the three compute types.

using Doubles = std::vector<double>;

inline const gpu::Stream& TestStream() {
  static const auto& stream = *new gpu::Stream(gpu::Device::Get(0));
  return stream;
}

template <typename T>
gpu::DeviceMemory Upload(const std::vector<T>& values) {
  gpu::DeviceMemory memory(TestStream().device(), values.size() * sizeof(T));
  const gpu::DeviceScope scope(TestStream().device());
  gpu::CopyToDevice(memory.address(), values.data(), memory.bytes(), TestStream().get());
  TestStream().Synchronize();
  return memory;
}

template <typename T>
std::vector<T> Download(const gpu::DeviceMemory& memory, size_t count) {
  std::vector<T> values(count);
  const gpu::DeviceScope scope(TestStream().device());
  gpu::CopyToHost(values.data(), memory.address(), count * sizeof(T), TestStream().get());
  TestStream().Synchronize();
  return values;
}

// Values of one of the three types.
struct Typed {
  std::string name;
  size_t size;
  double tolerance;

  // The value rounded to the type.
  float Rounded(double value) const {
    const auto narrow = static_cast<float>(value);
    if (name == "bf16") return __bfloat162float(__float2bfloat16(narrow));
    return name == "f16" ? __half2float(__float2half(narrow)) : narrow;
  }
  gpu::DeviceMemory ToDevice(const Doubles& values) const {
    std::vector<uint8_t> bytes(values.size() * size);
    for (size_t i = 0; i < values.size(); ++i) {
      const auto value = static_cast<float>(values[i]);
      const __nv_bfloat16 bf16 = __float2bfloat16(value);
      const __half f16 = __float2half(value);
      const void* from = name == "f32"    ? static_cast<const void*>(&value)
                         : name == "bf16" ? static_cast<const void*>(&bf16)
                                          : static_cast<const void*>(&f16);
      std::memcpy(bytes.data() + i * size, from, size);
    }
    return Upload(bytes);
  }
  Doubles ToHost(const gpu::DeviceMemory& memory, size_t count) const {
    const auto bytes = Download<uint8_t>(memory, count * size);
    Doubles values(count);
    for (size_t i = 0; i < count; ++i) {
      float value = 0;
      __nv_bfloat16 bf16;
      __half f16;
      std::memcpy(
          name == "f32"    ? static_cast<void*>(&value)
          : name == "bf16" ? static_cast<void*>(&bf16)
                           : static_cast<void*>(&f16),
          bytes.data() + i * size, size);
      values[i] = static_cast<double>(
          name == "f32"    ? value
          : name == "bf16" ? __bfloat162float(bf16)
                           : __half2float(f16));
    }
    return values;
  }
  gpu::DeviceMemory Zeros(size_t count) const {
    return gpu::DeviceMemory(TestStream().device(), count * size);
  }
};

// Each of the three types, with the tolerance of computations in it.
inline Typed AnyType() {
  return GENERATE(Typed{"f32", 4, 1e-5}, Typed{"bf16", 2, 1e-2}, Typed{"f16", 2, 2e-3});
}

// Numbers in (-1, 1) that every type represents exactly.
inline Doubles MadeUp(size_t count, uint32_t salt) {
  Doubles values(count);
  for (size_t i = 0; i < count; ++i)
    values[i] = (static_cast<double>((i * 2654435761u + salt * 40503u) >> 8 & 255) - 127.5) / 128;
  return values;
}

inline std::vector<float> Floats(const Doubles& values) { return {values.begin(), values.end()}; }

inline void CheckNear(const Doubles& got, const Doubles& expected, double tolerance) {
  REQUIRE(got.size() == expected.size());
  double distance = 0, norm = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    distance += std::pow(got[i] - expected[i], 2);
    norm += std::pow(expected[i], 2);
  }
  CHECK(std::sqrt(distance) <= tolerance * std::sqrt(norm));
}

inline void CheckNear(const std::vector<float>& got, const Doubles& expected, double tolerance) {
  CheckNear(Doubles(got.begin(), got.end()), expected, tolerance);
}

template <typename Args>
void RunKernel(const std::string& name, const gpu::Shape& shape, const Args& args) {
  models::LayerImageWith(name).Launch(
      TestStream().device(), name.c_str(), shape, TestStream().get(), args);
  TestStream().Synchronize();
}

template <typename Args>
void RunKernel(const std::string& name, uint32_t blocks, const Args& args) {
  RunKernel(name, gpu::Shape{.blocks = blocks}, args);
}

// The sizes of an activation.
struct Sizes {
  uint32_t rows, height, width, channels;

  uint32_t pixels() const { return rows * height * width; }
  uint32_t count() const { return pixels() * channels; }
};

// Device memory for the sums per channel of three blocks: partial sums, and counters that start at
// zero.
struct Sums {
  explicit Sums(uint32_t channels) : tiles(models::ChannelTiles(channels)) {}

  uint32_t tiles;
  gpu::DeviceMemory partials = Upload(Doubles(3 * 2 * models::kChannelTile * tiles));
  gpu::DeviceMemory counters = Upload(std::vector<uint32_t>(tiles));
  gpu::Shape shape{.blocks = 3, .blocks_y = tiles};
};

}  // namespace dtrun::testing

#endif
