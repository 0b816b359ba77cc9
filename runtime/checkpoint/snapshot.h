#ifndef DTRUN_RUNTIME_CHECKPOINT_SNAPSHOT_H_
#define DTRUN_RUNTIME_CHECKPOINT_SNAPSHOT_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/checkpoint/tensor.h"

namespace dtrun::runtime {

/// Memory that tensors are copied into, kept for the next time.
class Snapshot {
 public:
  /// Takes the memory that a copy of these needs. Throws std::bad_alloc.
  void Reserve(const std::vector<Tensor>& tensors);
  /// The same tensors, with data of the snapshot's own; it has been reserved.
  std::vector<Tensor> Copy(const std::vector<Tensor>& tensors);

 private:
  std::unique_ptr<char[]> memory_;
  uint64_t bytes_ = 0;
};

}  // namespace dtrun::runtime

#endif
