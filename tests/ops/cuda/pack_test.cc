// Pack converts many tensors in one kernel launch. The tests compare its bits with the CPU.

#include "ops/cuda/pack.h"

#include <catch2/catch.hpp>
#include <cstring>
#include <string>
#include <vector>

#include "dtrun/error.h"
#include "gpu/gpu_device.h"
#include "gpu/memory.h"
#include "gpu/stream.h"
#include "ops/reduce/reduce.h"
#include "tests/conformance/reference.h"

namespace dtrun::testing {
namespace {

using ops::cuda::Pack;

constexpr DType kFloats[] = {DType::kF32, DType::kF16, DType::kBF16};

// Converts on the CPU: to f32, multiplied by `scale`, then to `to`.
Bytes Converted(const Bytes& from, DType dtype, DType to, float scale) {
  const uint64_t count = from.size() / SizeOf(dtype);
  std::vector<float> wide(count);
  if (dtype == DType::kF32) {
    std::memcpy(wide.data(), from.data(), from.size());
  } else {
    ops::Convert(from.data(), dtype, wide.data(), DType::kF32, count);
  }
  for (float& value : wide) value *= scale;
  Bytes result(count * SizeOf(to));
  if (to == DType::kF32) {
    std::memcpy(result.data(), wide.data(), result.size());
  } else {
    ops::Convert(wide.data(), DType::kF32, result.data(), to, count);
  }
  return result;
}

struct Tensor {
  Buffer buffer;
  Bytes values;
};

// Tensors of all types, of odd sizes and at odd places of one allocation. Some are larger than a
// piece.
std::vector<Tensor> MakeTensors(const gpu::DeviceMemory& memory, const gpu::Stream& stream) {
  std::vector<Tensor> tensors;
  uint64_t begin = 0;
  const uint64_t counts[] = {1, 64, 0, 1000, 5000, 3, 8192, 17};
  for (size_t t = 0; t < std::size(counts); ++t) {
    const DType dtype = kFloats[t % 3];
    Tensor tensor;
    tensor.values = MakeValues(Values::kAny, dtype, ReduceOp::kSum, t, 0, 0, counts[t]);
    tensor.buffer = Buffer(memory.as<char>() + begin, counts[t], dtype);
    tensor.buffer.device = stream.device().index();
    begin += tensor.values.size() + 4 * (t % 3);
    if (!tensor.values.empty())
      gpu::CopyToDevice(
          gpu::AddressOf(tensor.buffer.data), tensor.values.data(), tensor.values.size(),
          stream.get());
    tensors.push_back(std::move(tensor));
  }
  stream.Synchronize();
  return tensors;
}

std::vector<Buffer> BuffersOf(const std::vector<Tensor>& tensors) {
  std::vector<Buffer> buffers;
  for (const Tensor& tensor : tensors) buffers.push_back(tensor.buffer);
  return buffers;
}

Bytes Download(CUdeviceptr from, uint64_t bytes, const gpu::Stream& stream) {
  Bytes result(bytes);
  gpu::CopyToHost(result.data(), from, bytes, stream.get());
  stream.Synchronize();
  return result;
}

TEST_CASE("tensors of all types go into a block and back with the bits of the CPU") {
  const gpu::Device& device = gpu::Device::Get(0);
  const gpu::DeviceScope scope(device);
  const gpu::Stream stream(device);
  const gpu::DeviceMemory memory(device, 1 << 20), block(device, 1 << 20);
  for (const DType dtype : kFloats) {
    for (const float scale : {1.0f, 0.3f}) {
      INFO(NameOf(dtype) << ", " << scale);
      const std::vector<Tensor> tensors = MakeTensors(memory, stream);
      const Pack pack(device, BuffersOf(tensors), dtype);
      Bytes expected;
      for (const Tensor& tensor : tensors) {
        const Bytes part = Converted(tensor.values, tensor.buffer.dtype, dtype, scale);
        expected.insert(expected.end(), part.begin(), part.end());
      }
      REQUIRE(pack.count() * SizeOf(dtype) == expected.size());
      pack.Gather(block.as<void>(), scale, stream.get());
      CHECK(Download(block.address(), expected.size(), stream) == expected);

      pack.Scatter(block.as<void>(), 2.0f, stream.get());
      uint64_t begin = 0;
      for (const Tensor& tensor : tensors) {
        const uint64_t bytes = tensor.buffer.count * SizeOf(dtype);
        const auto at = expected.begin() + static_cast<int64_t>(begin);
        const Bytes part(at, at + static_cast<int64_t>(bytes));
        begin += bytes;
        CHECK(
            Download(gpu::AddressOf(tensor.buffer.data), tensor.values.size(), stream) ==
            Converted(part, dtype, tensor.buffer.dtype, 2.0f));
      }
    }
  }
}

TEST_CASE("a pack can be captured into a graph and a pack without tensors does nothing") {
  const gpu::Device& device = gpu::Device::Get(0);
  const gpu::DeviceScope scope(device);
  const gpu::Stream stream(device);
  const gpu::DeviceMemory memory(device, 1 << 20), block(device, 1 << 20);
  const std::vector<Tensor> tensors = MakeTensors(memory, stream);
  const Pack pack(device, BuffersOf(tensors), DType::kF32);
  const gpu::Graph graph(stream, [&] { pack.Gather(block.as<void>(), 1.0f, stream.get()); });
  CHECK(Download(block.address(), 4, stream) == Bytes(4));
  graph.Launch(stream.get());
  CHECK(Download(block.address(), 4, stream) == tensors[0].values);
  const Pack none(device, {}, DType::kF32);
  CHECK(none.count() == 0);
  none.Gather(block.as<void>(), 1.0f, stream.get());
}

TEST_CASE("tensors that a pack cannot hold are refused and named") {
  const gpu::Device& device = gpu::Device::Get(0);
  float host = 0;
  Buffer tensor(&host, 1);
  CHECK_THROWS_WITH(
      Pack(device, {tensor}, DType::kF32), "pack: tensor 0 lies in host memory; expected GPU 0");
  tensor.dtype = DType::kI32;
  CHECK_THROWS_WITH(
      Pack(device, {tensor}, DType::kF32), "pack: tensor 0 is of i32; expected f32, f16 or bf16");
  CHECK_THROWS_WITH(
      Pack(device, {}, DType::kF64), "pack: the block is of f64; expected f32, f16 or bf16");
}

}  // namespace
}  // namespace dtrun::testing
