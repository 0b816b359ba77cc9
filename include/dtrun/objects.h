#ifndef DTRUN_OBJECTS_H_
#define DTRUN_OBJECTS_H_

#include <dtrun/communicator.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace dtrun {

/// The bytes of every rank, in rank order; their lengths may differ. Collective.
///
///   rank 0: "ok"   rank 1: ""   AllGatherBytes  ->  both {"ok", ""}
inline std::vector<std::string> AllGatherBytes(
    Communicator& communicator, const std::string& bytes) {
  const auto size = static_cast<size_t>(communicator.size());
  uint64_t length = bytes.size();
  std::vector<uint64_t> lengths(size);
  communicator.AllGather(Buffer(&length, 1), Buffer(lengths.data(), size));

  const uint64_t longest = *std::max_element(lengths.begin(), lengths.end());
  std::vector<uint8_t> mine(longest), all(longest * size);
  std::copy(bytes.begin(), bytes.end(), mine.begin());
  communicator.AllGather(Buffer(mine.data(), mine.size()), Buffer(all.data(), all.size()));

  std::vector<std::string> result;
  for (size_t rank = 0; rank < size; ++rank) {
    const auto* begin = reinterpret_cast<const char*>(all.data()) + rank * longest;
    result.emplace_back(begin, begin + lengths[rank]);
  }
  return result;
}

}  // namespace dtrun

#endif
