#ifndef DTRUN_OPS_SHM_COPY_H_
#define DTRUN_OPS_SHM_COPY_H_

#include <cstdint>
#include <cstring>

namespace dtrun::ops::shm {

/// Nothing when source and destination are the same place, as in operations in place.
inline void Copy(char* to, const char* from, uint64_t bytes) {
  if (to != from && bytes > 0) std::memcpy(to, from, bytes);
}

}  // namespace dtrun::ops::shm

#endif
