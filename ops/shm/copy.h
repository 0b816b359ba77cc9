#ifndef DTRUN_OPS_SHM_COPY_H_
#define DTRUN_OPS_SHM_COPY_H_

#include <cstdint>

#include "ops/reduce/reduce.h"

namespace dtrun::ops::shm {

/// Results that are larger than this go past the cache: most of them would have left it again
/// before anybody reads them.
inline constexpr uint64_t kStreamingBytes = 8 << 20;

inline Stores StoresFor(uint64_t bytes) {
  return bytes >= kStreamingBytes ? Stores::kStreaming : Stores::kCached;
}

/// Nothing when source and destination are the same place, as in operations in place.
inline void Copy(char* to, const char* from, uint64_t bytes, Stores stores) {
  if (to != from && bytes > 0) ops::Copy(to, from, bytes, stores);
}

}  // namespace dtrun::ops::shm

#endif
