#ifndef DTRUN_RUNTIME_CHECKPOINT_PIECE_PLAN_H_
#define DTRUN_RUNTIME_CHECKPOINT_PIECE_PLAN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/checkpoint/tensor.h"

namespace dtrun::runtime {

/// Elements [first, first + count) of a tensor, which lie in one file.
struct Piece {
  size_t tensor = 0;  ///< index
  uint64_t first = 0, count = 0;

  bool operator==(const Piece&) const = default;
};

/// The tensors' bytes in `parts` parts that are as equal as can be with tensors of less than 1 MiB
/// in one piece; by part, in the tensors' order.
std::vector<std::vector<Piece>> PlanPieces(const std::vector<Tensor>& tensors, int parts);

/// What a piece is called in its file: the tensor's name or, of a part, "name[first:end]".
std::string NameOfPiece(const Tensor& tensor, const Piece& piece);
/// A piece as a tensor: of the shape of the whole, or (count).
Tensor TensorOf(const Tensor& whole, const Piece& piece);

}  // namespace dtrun::runtime

#endif
