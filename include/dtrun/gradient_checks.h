#ifndef DTRUN_GRADIENT_CHECKS_H_
#define DTRUN_GRADIENT_CHECKS_H_

#include <dtrun/communicator.h>
#include <dtrun/error.h>
#include <dtrun/objects.h>
#include <dtrun/optimizer.h>
#include <dtrun/types.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <optional>
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

/// Throws kMismatch on all ranks if one has found a gradient infinite or no number: `found` is the
/// parameter, or none. `when` ends the text: " in step 7". Collective.
inline void CheckFinite(
    Communicator& communicator, const std::vector<Parameter>& parameters,
    std::optional<size_t> found, const std::string& when) {
  int64_t mine = found ? static_cast<int64_t>(*found) : int64_t{-1};
  std::vector<int64_t> all(static_cast<size_t>(communicator.size()));
  communicator.AllGather(Buffer(&mine, 1), Buffer(all.data(), all.size()));
  const auto first = std::find_if(all.begin(), all.end(), [](int64_t i) { return i >= 0; });
  if (first == all.end()) return;
  std::vector<int> ranks;
  for (size_t rank = 0; rank < all.size(); ++rank)
    if (all[rank] == *first) ranks.push_back(static_cast<int>(rank));
  throw Error(
      ErrorCode::kMismatch, "the gradient of '" + parameters[static_cast<size_t>(*first)].name +
                                "' is infinite or no number on " + RankList(ranks) + when);
}

/// Throws kMismatch on all ranks unless the values of `which` parameters are the same on all of
/// them. Collective.
inline void CheckSameValues(
    Communicator& communicator, const std::vector<Parameter>& parameters,
    const std::vector<size_t>& which, const std::string& when) {
  std::vector<uint64_t> mine;
  for (const size_t i : which) mine.push_back(DigestOf(parameters[i].value));
  std::vector<uint64_t> all(mine.size() * static_cast<size_t>(communicator.size()));
  communicator.AllGather(Buffer(mine.data(), mine.size()), Buffer(all.data(), all.size()));
  for (size_t i = 0; i < mine.size(); ++i) {
    std::vector<int> others;
    for (size_t rank = 0; rank * mine.size() < all.size(); ++rank)
      if (all[rank * mine.size() + i] != all[i]) others.push_back(static_cast<int>(rank));
    if (others.empty()) continue;
    throw Error(
        ErrorCode::kMismatch, "parameter '" + parameters[which[i]].name + "' of " +
                                  RankList(others) + " is not that of rank 0 any more" + when);
  }
}

}  // namespace detail
}  // namespace dtrun

#endif
