#ifndef DTRUN_OPS_OPERATION_OBSERVER_H_
#define DTRUN_OPS_OPERATION_OBSERVER_H_

#include <cstdint>

#include "base/clock.h"

namespace dtrun::ops {

class Operation;

/// Sees every operation of a rank begin and end, but for those that are parts of others. Called by
/// the Engine, one call at a time, from whichever thread moves the operation; it must be quick and
/// must not call the engine.
class OperationObserver {
 public:
  virtual ~OperationObserver() = default;
  /// `number` is 1, 2 and so on, in the order of the starts.
  virtual void Started(uint64_t number, const Operation& operation, base::TimePoint now) = 0;
  /// `arrived`: when all ranks had called it; zero where that is not known.
  virtual void Ended(
      uint64_t number, base::TimePoint arrived, base::TimePoint now, bool failed) = 0;
};

}  // namespace dtrun::ops

#endif
