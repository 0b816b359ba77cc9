#ifndef DTRUN_RUNTIME_USED_FLAGS_H_
#define DTRUN_RUNTIME_USED_FLAGS_H_

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "dtrun/types.h"

namespace dtrun::runtime {

/// Whether any rank used a gradient in a step: a number for each, which is reduced like gradients.
/// 0 and 1 stand for it in any float type; which of them says "used" depends on the operation, so
/// that one rank's yes outweighs all others' no.
class UsedFlags {
 public:
  UsedFlags() = default;
  /// The numbers lie in `where`.
  UsedFlags(ReduceOp op, Buffer where);

  void Set(size_t i, bool used) { Store(i, used ? used_ : unused_); }
  /// After the reduction: whether a rank has set it.
  bool WasUsed(size_t i) const { return Load(i) != unused_; }

 private:
  // Once for each gradient of a step, and mostly of 4 bytes.
  void Store(size_t i, uint64_t bits) {
    if (bytes_ == 4)
      std::memcpy(data_ + 4 * i, &bits, 4);
    else
      std::memcpy(data_ + bytes_ * i, &bits, bytes_);
  }
  uint64_t Load(size_t i) const {
    uint64_t bits = 0;
    if (bytes_ == 4)
      std::memcpy(&bits, data_ + 4 * i, 4);
    else
      std::memcpy(&bits, data_ + bytes_ * i, bytes_);
    return bits;
  }

  char* data_ = nullptr;
  size_t bytes_ = 0;  // of one
  uint64_t used_ = 0, unused_ = 0;
};

}  // namespace dtrun::runtime

#endif
