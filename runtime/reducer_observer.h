#ifndef DTRUN_RUNTIME_REDUCER_OBSERVER_H_
#define DTRUN_RUNTIME_REDUCER_OBSERVER_H_

#include <cstddef>

namespace dtrun::runtime {

/// Sees what a GradientReducer does, from the thread that uses it. It must be quick.
class ReducerObserver {
 public:
  virtual ~ReducerObserver() = default;
  virtual void Marked(size_t gradient) = 0;
  /// The next operation that this thread starts is that of the bucket.
  virtual void BucketStarts(size_t bucket) = 0;
  virtual void WaitBegins() = 0;
  virtual void WaitEnds() = 0;
};

}  // namespace dtrun::runtime

#endif
