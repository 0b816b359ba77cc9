#include "models/layers/gradient_pool.h"

namespace dtrun::models {

// The smallest free piece that is large enough; a new one only if there is none.
float* GradientPool::Take(size_t count) {
  Piece* best = nullptr;
  for (Piece& piece : pieces_) {
    if (piece.taken || piece.floats.count() < count) continue;
    if (best == nullptr || piece.floats.count() < best->floats.count()) best = &piece;
  }
  if (best == nullptr) best = &pieces_.emplace_back(Piece{FloatArray(count)});
  best->taken = true;
  return best->floats.data();
}

void GradientPool::Release(const float* memory) {
  for (Piece& piece : pieces_) {
    if (piece.floats.data() == memory) piece.taken = false;
  }
}

}  // namespace dtrun::models
