#ifndef DTRUN_CLEAR_H_
#define DTRUN_CLEAR_H_

#include <dtrun/c_device.h>
#include <dtrun/error.h>
#include <dtrun/types.h>

#include <cstring>

namespace dtrun {

/// Fills a buffer with zeros; one on a GPU when its stream gets there. Throws kUnavailable where
/// there is no such GPU, kSystem when the driver fails.
inline void Clear(const Buffer& buffer) {
  if (buffer.count == 0) return;
  if (buffer.device >= 0)
    detail::Check(dtrun_clear(detail::ToC(buffer)));
  else
    std::memset(buffer.data, 0, buffer.bytes());
}

}  // namespace dtrun

#endif
