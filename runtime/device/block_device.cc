// Host memory as a BlockDevice, and functions over buffers in several places, which pass each run
// of buffers of one place to its device. block_args.h tells the order of sums.

#include "runtime/device/block_device.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>

#include "dtrun/error.h"
#include "ops/reduce/reduce.h"
#include "runtime/device/block_args.h"

namespace dtrun::runtime {
namespace {

constexpr uint64_t kStreamedBytes = 1 << 20;  // from this size, copies pass the caches by

template <typename T>
double SumOfChunk(const T* values, uint64_t count) {
  double parts[kSumParts] = {};
  uint64_t i = 0;
  for (; i + kSumParts <= count; i += kSumParts) {
    for (uint64_t k = 0; k < kSumParts; ++k) {
      const auto value = static_cast<double>(values[i + k]);
      parts[k] += value * value;
    }
  }
  for (uint64_t k = 0; i < count; ++i, ++k)
    parts[k] += static_cast<double>(values[i]) * static_cast<double>(values[i]);
  double sum = 0;
  for (const double part : parts) sum += part;
  return sum;
}

template <typename T>
double SumOfSquares(const Buffer& buffer) {
  const T* values = static_cast<const T*>(buffer.data);
  double sum = 0;
  for (uint64_t begin = 0; begin < buffer.count; begin += kSumChunk)
    sum += SumOfChunk(values + begin, std::min<uint64_t>(kSumChunk, buffer.count - begin));
  return sum;
}

template <typename T>
void MultiplyAll(const Buffer& buffer, double factor) {
  T* values = static_cast<T*>(buffer.data);
  for (uint64_t i = 0; i < buffer.count; ++i) values[i] *= static_cast<T>(factor);
}

template <typename Bits>
bool AnyHas(const Buffer& buffer, Bits exponent) {
  const auto* bytes = static_cast<const unsigned char*>(buffer.data);
  bool found = false;
  for (uint64_t i = 0; i < buffer.count; ++i) {
    Bits bits;
    std::memcpy(&bits, bytes + i * sizeof bits, sizeof bits);
    found = found | ((bits & exponent) == exponent);
  }
  return found;
}

class HostBlockDevice : public BlockDevice {
 public:
  void Copy(const Buffer& from, const Buffer& to) override {
    // Large copies are kept for later. The C library would stream only those larger than most of
    // the last-level cache, which in a virtual machine is that of the whole host.
    const uint64_t bytes = from.bytes();
    if (bytes > 0)
      ops::Copy(
          to.data, from.data, bytes,
          bytes >= kStreamedBytes ? ops::Stores::kStreaming : ops::Stores::kCached);
  }
  void Clear(const Buffer& buffer) override {
    if (buffer.count > 0) std::memset(buffer.data, 0, buffer.bytes());
  }
  void Multiply(const Buffer& buffer, double factor) override {
    buffer.dtype == DType::kF64 ? MultiplyAll<double>(buffer, factor)
                                : MultiplyAll<float>(buffer, factor);
  }
  std::vector<double> SquaredNorms(const std::vector<Buffer>& buffers) override {
    std::vector<double> sums;
    for (const Buffer& buffer : buffers)
      sums.push_back(
          buffer.dtype == DType::kF64 ? SumOfSquares<double>(buffer) : SumOfSquares<float>(buffer));
    return sums;
  }
  std::optional<size_t> FindNonFinite(const std::vector<Buffer>& buffers) override {
    for (size_t i = 0; i < buffers.size(); ++i)
      if (HasNonFinite(buffers[i])) return i;
    return std::nullopt;
  }

 private:
  static bool HasNonFinite(const Buffer& buffer) {
    const uint64_t exponent = ExponentOf(buffer.dtype);
    if (exponent == 0) return false;
    switch (SizeOf(buffer.dtype)) {
      case 2: return AnyHas(buffer, static_cast<uint16_t>(exponent));
      case 4: return AnyHas(buffer, static_cast<uint32_t>(exponent));
      default: return AnyHas(buffer, exponent);
    }
  }
};

// Calls `body(device, buffers of the run, index of the first)` for each run of buffers that lie in
// one place, until it returns true.
template <typename Body>
void ForEachRun(const std::vector<Buffer>& buffers, const Body& body) {
  for (size_t begin = 0, end; begin < buffers.size(); begin = end) {
    const Buffer& first = buffers[begin];
    end = begin + 1;
    while (end < buffers.size() && buffers[end].device == first.device &&
           buffers[end].stream == first.stream)
      ++end;
    const auto at = [&](size_t i) { return buffers.begin() + static_cast<ptrdiff_t>(i); };
    if (body(BlockDeviceOf(first), std::vector<Buffer>(at(begin), at(end)), begin)) return;
  }
}

}  // namespace

uint64_t ExponentOf(DType dtype) {
  switch (dtype) {
    case DType::kF16: return 0x7c00;
    case DType::kBF16: return 0x7f80;
    case DType::kF32: return 0x7f800000;
    case DType::kF64: return 0x7ff0000000000000;
    case DType::kU8:
    case DType::kI8:
    case DType::kU16:
    case DType::kI16:
    case DType::kU32:
    case DType::kI32:
    case DType::kU64:
    case DType::kI64:
    case DType::kBool: return 0;
  }
  return 0;
}

BlockDevice& BlockDeviceOf(const Buffer& buffer) {
  static HostBlockDevice host;
  if (buffer.device < 0) return host;
  return CudaBlockDevice(buffer.device);
}

void Copy(const Buffer& from, const Buffer& to) {
  BlockDeviceOf(from.device >= 0 ? from : to).Copy(from, to);
}

std::vector<double> SquaredNorms(const std::vector<Buffer>& buffers) {
  for (const Buffer& buffer : buffers)
    if (buffer.dtype != DType::kF32 && buffer.dtype != DType::kF64)
      throw Error(
          ErrorCode::kInvalidArgument,
          std::string("the norm of a buffer of ") + NameOf(buffer.dtype) + "; expected f32 or f64");
  std::vector<double> sums;
  ForEachRun(buffers, [&](BlockDevice& device, const std::vector<Buffer>& run, size_t) {
    for (const double sum : device.SquaredNorms(run)) sums.push_back(sum);
    return false;
  });
  return sums;
}

std::optional<size_t> FindNonFinite(const std::vector<Buffer>& buffers) {
  std::optional<size_t> found;
  ForEachRun(buffers, [&](BlockDevice& device, const std::vector<Buffer>& run, size_t first) {
    if (const std::optional<size_t> i = device.FindNonFinite(run)) found = first + *i;
    return found.has_value();
  });
  return found;
}

}  // namespace dtrun::runtime
