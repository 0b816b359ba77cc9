#ifndef DTRUN_MODELS_DATA_HOST_MEMORY_H_
#define DTRUN_MODELS_DATA_HOST_MEMORY_H_

#include <dtrun/communicator.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace dtrun::models {

/// Read-only memory that the ranks of a host share; gone with the last of them, however they end.
/// Thread-safe.
class HostMemory {
 public:
  /// Collective over `host`, the ranks of one host. The first of them has `parts`, one after the
  /// other; what the others pass is ignored. Ranks that cannot reach the first one's memory, such
  /// as those in containers of their own, get a copy. Throws Error: kSystem, and those of
  /// Communicator.
  static std::shared_ptr<const HostMemory> Share(
      Communicator& host, const std::vector<std::span<const uint8_t>>& parts);

  /// What Share falls back to: each rank has memory of its own with the same `bytes` bytes.
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
