#ifndef DTRUN_MODELS_DATA_HOST_MEMORY_H_
#define DTRUN_MODELS_DATA_HOST_MEMORY_H_

#include <dtrun/communicator.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace dtrun::models {

/// Read-only memory that the ranks of a host share. The kernel frees the memory when the last rank
/// ends, even after a crash. Thread-safe.
class HostMemory {
 public:
  /// Shares the first rank's `parts`, one after the other. The other ranks' `parts` are ignored.
  /// Collective over `host`, the ranks of one host. If a rank cannot map the first rank's memory,
  /// for example from another container, every rank gets a copy. Throws Error: kSystem, and the
  /// errors of Communicator.
  static std::shared_ptr<const HostMemory> Share(
      Communicator& host, const std::vector<std::span<const uint8_t>>& parts);

  /// The fallback of Share: copies the first rank's `bytes` bytes into each rank's private memory.
  static std::shared_ptr<const HostMemory> Copy(
      Communicator& host, const std::vector<std::span<const uint8_t>>& parts, size_t bytes);

  HostMemory(const uint8_t* data, size_t bytes) : data_(data), bytes_(bytes) {}
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;
  ~HostMemory();

  const uint8_t* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  const uint8_t* data_;
  size_t bytes_;
};

}  // namespace dtrun::models

#endif
