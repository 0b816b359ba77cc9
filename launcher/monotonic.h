#ifndef DTRUN_LAUNCHER_MONOTONIC_H_
#define DTRUN_LAUNCHER_MONOTONIC_H_

#include <chrono>
#include <cstdint>

namespace dtrun::launcher {

/// The monotonic clock, one for all processes of a host.
inline int64_t MonotonicNs() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

}  // namespace dtrun::launcher

#endif
