#ifndef DTRUN_GRADIENT_CHECKS_H_
#define DTRUN_GRADIENT_CHECKS_H_

#include <dtrun/communicator.h>
#include <dtrun/error.h>
#include <dtrun/objects.h>
#include <dtrun/optimizer.h>
#include <dtrun/types.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <vector>

// What DistributedOptimizer looks at besides reducing; not for trainers.

namespace dtrun {
namespace detail {

/// Whether an element of a float type is infinite or no number. False for other types.
inline bool HasNonFinite(const Buffer& buffer) {
  const auto any = [&](auto exponent) {
    using Bits = decltype(exponent);
    const auto* bytes = static_cast<const unsigned char*>(buffer.data);
    bool found = false;
    for (uint64_t i = 0; i < buffer.count; ++i) {
      Bits bits;
      std::memcpy(&bits, bytes + i * sizeof bits, sizeof bits);
      found = found | ((bits & exponent) == exponent);
    }
    return found;
  };
  switch (buffer.dtype) {
    case DType::kF16: return any(uint16_t{0x7c00});
    case DType::kBF16: return any(uint16_t{0x7f80});
    case DType::kF32: return any(uint32_t{0x7f800000});
    case DType::kF64: return any(uint64_t{0x7ff0000000000000});
    default: return false;
  }
}

/// 64-bit FNV-1a over words of eight bytes and the rest.
inline uint64_t DigestOf(const Buffer& buffer) {
  uint64_t digest = 0xcbf29ce484222325u;
  const auto* bytes = static_cast<const unsigned char*>(buffer.data);
  uint64_t i = 0;
  for (uint64_t word; i + sizeof word <= buffer.bytes(); i += sizeof word) {
    std::memcpy(&word, bytes + i, sizeof word);
    digest = (digest ^ word) * 0x100000001b3u;
    digest ^= digest >> 32;
  }
  for (; i < buffer.bytes(); ++i) digest = (digest ^ bytes[i]) * 0x100000001b3u;
  return digest;
}

/// "rank 1", "ranks 0, 2"
inline std::string RankList(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) text += (i > 0 ? ", " : "") + std::to_string(ranks[i]);
  return text;
}

/// Sum of squares of a gradient of f32 or f64, in f64, in four parts whose order never changes.
inline double SquaredNorm(const Buffer& buffer) {
  const auto sum = [&](const auto* values) {
    double parts[4] = {0, 0, 0, 0};
    for (uint64_t i = 0; i < buffer.count; ++i) {
      const double value = static_cast<double>(values[i]);
      parts[i % 4] += value * value;
    }
    return (parts[0] + parts[1]) + (parts[2] + parts[3]);
  };
  return buffer.dtype == DType::kF64 ? sum(static_cast<const double*>(buffer.data))
                                     : sum(static_cast<const float*>(buffer.data));
}

inline void Multiply(const Buffer& buffer, double factor) {
  if (buffer.dtype == DType::kF64) {
    auto* values = static_cast<double*>(buffer.data);
    for (uint64_t i = 0; i < buffer.count; ++i) values[i] *= factor;
  } else {
    auto* values = static_cast<float*>(buffer.data);
    for (uint64_t i = 0; i < buffer.count; ++i) values[i] *= static_cast<float>(factor);
  }
}

/// Throws kMismatch on all ranks unless `mine` is the same text on all of them. Collective.
inline void CheckSameText(
    Communicator& communicator, const std::string& what, const std::string& mine) {
  std::map<std::string, std::vector<int>> sides;
  int rank = 0;
  for (const std::string& text : AllGatherBytes(communicator, mine)) sides[text].push_back(rank++);
  if (sides.size() == 1) return;
  std::string listing;
  for (const auto& side : sides)
    listing += (listing.empty() ? "" : "; ") + side.first + " on " + RankList(side.second);
  throw Error(ErrorCode::kMismatch, "the ranks have different " + what + ": " + listing);
}

}  // namespace detail
}  // namespace dtrun

#endif
