#include "runtime/checkpoint/piece_plan.h"

#include <algorithm>

#include "base/text.h"

namespace dtrun::runtime {
namespace {

constexpr uint64_t kWholeBelow = 1 << 20;  // bytes

bool IsWhole(const Tensor& tensor, const Piece& piece) {
  return piece.count == tensor.buffer.count;
}

}  // namespace

std::vector<std::vector<Piece>> PlanPieces(const std::vector<Tensor>& tensors, int parts) {
  uint64_t total = 0;
  for (const Tensor& tensor : tensors) total += tensor.buffer.bytes();
  const uint64_t share = std::max<uint64_t>(
      1, (total + static_cast<uint64_t>(parts) - 1) / static_cast<uint64_t>(parts));
  std::vector<std::vector<Piece>> plan(static_cast<size_t>(parts));
  // The byte at `at` of all tensors in a row belongs to the part `at / share`.
  uint64_t at = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const Buffer& buffer = tensors[i].buffer;
    const uint64_t size = SizeOf(buffer.dtype);
    uint64_t first = 0;
    do {
      const uint64_t part = std::min<uint64_t>(at / share, plan.size() - 1);
      uint64_t count = buffer.count - first;
      if (buffer.bytes() >= kWholeBelow && part + 1 < plan.size())
        count = std::min(count, ((part + 1) * share - at + size - 1) / size);
      plan[part].push_back({i, first, count});
      first += count;
      at += count * size;
    } while (first < buffer.count);
  }
  return plan;
}

std::string NameOfPiece(const Tensor& tensor, const Piece& piece) {
  if (IsWhole(tensor, piece)) return tensor.name;
  return base::Text(tensor.name, '[', piece.first, ':', piece.first + piece.count, ']');
}

Tensor TensorOf(const Tensor& whole, const Piece& piece) {
  return {
      NameOfPiece(whole, piece), whole.buffer.Slice(piece.first, piece.count),
      IsWhole(whole, piece) ? whole.shape : Shape{piece.count}};
}

}  // namespace dtrun::runtime
