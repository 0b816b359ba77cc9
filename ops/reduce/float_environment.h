#ifndef DTRUN_OPS_REDUCE_FLOAT_ENVIRONMENT_H_
#define DTRUN_OPS_REDUCE_FLOAT_ENVIRONMENT_H_

#include <immintrin.h>

namespace dtrun::ops {

/// A thread that flushes denormals or rounds another way would compute other bits than its peers
/// do: while this lives, the thread rounds to nearest and keeps denormals.
class StandardFloatEnvironment {
 public:
  StandardFloatEnvironment() : before_(_mm_getcsr()) {
    if ((before_ & kDeviations) != 0) _mm_setcsr(before_ & ~kDeviations);
  }
  ~StandardFloatEnvironment() {
    if ((before_ & kDeviations) != 0) _mm_setcsr(before_);
  }
  StandardFloatEnvironment(const StandardFloatEnvironment&) = delete;
  StandardFloatEnvironment& operator=(const StandardFloatEnvironment&) = delete;

 private:
  static constexpr unsigned kDeviations =
      _MM_FLUSH_ZERO_MASK | _MM_ROUND_MASK | 0x40u;  // 0x40: denormals are zeros

  unsigned before_;
};

}  // namespace dtrun::ops

#endif
