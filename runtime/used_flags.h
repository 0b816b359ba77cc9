#ifndef DTRUN_RUNTIME_USED_FLAGS_H_
#define DTRUN_RUNTIME_USED_FLAGS_H_

#include <cstddef>

#include "dtrun/types.h"

namespace dtrun::runtime {

/// Whether any rank used a gradient in a step: a number for each, which is reduced like gradients.
/// 0 and 1 stand for it in any float type; which of them says "used" depends on the operation, so
/// that one rank's yes outweighs all others' no.
class UsedFlags {
 public:
  UsedFlags() = default;
  /// The numbers lie in `where`.
  UsedFlags(ReduceOp op, Buffer where) : op_(op), where_(where) {}

  void Set(size_t i, bool used);
  /// After the reduction: whether a rank has set it.
  bool WasUsed(size_t i) const;

 private:
  void* At(size_t i) const { return static_cast<char*>(where_.data) + i * SizeOf(where_.dtype); }

  ReduceOp op_ = ReduceOp::kSum;
  Buffer where_;
};

}  // namespace dtrun::runtime

#endif
