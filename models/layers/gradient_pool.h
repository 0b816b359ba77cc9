#ifndef DTRUN_MODELS_LAYERS_GRADIENT_POOL_H_
#define DTRUN_MODELS_LAYERS_GRADIENT_POOL_H_

#include <cstddef>
#include <deque>

#include "models/layers/tensor.h"

namespace dtrun::models {

/// Memory for the gradients of activations, which live shortly: from the way back of the layer that
/// reads a tensor to that of the layer which made it. A deep network needs as much as its two or
/// three largest tensors, not as all of them together. Not thread-safe.
class GradientPool {
 public:
  /// `count` floats that are nobody else's until they are released; zeroed when they are new.
  float* Take(size_t count);
  /// No effect on memory that is not from here.
  void Release(const float* memory);

 private:
  struct Piece {
    FloatArray floats;
    bool taken = false;
  };

  std::deque<Piece> pieces_;
};

}  // namespace dtrun::models

#endif
