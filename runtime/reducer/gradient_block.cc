#include "runtime/reducer/gradient_block.h"

#include <algorithm>

namespace dtrun::runtime {
namespace {

// The value of a flag that changes nothing in the reduction of others: it stays only if no rank
// used the gradient.
double Unused(ReduceOp op) { return op == ReduceOp::kMin || op == ReduceOp::kProduct ? 1 : 0; }

// The bytes of 0 or 1.
uint64_t BitsOf(DType dtype, double value) {
  if (value == 0) return 0;
  if (dtype == DType::kF64) return 0x3ff0000000000000u;
  if (dtype == DType::kF16) return 0x3c00;
  if (dtype == DType::kBF16) return 0x3f80;
  return 0x3f800000;
}

}  // namespace

UsedFlags::UsedFlags(ReduceOp op, Buffer where)
    : data_(static_cast<char*>(where.data)),
      bytes_(SizeOf(where.dtype)),
      used_(BitsOf(where.dtype, 1 - Unused(op))),
      unused_(BitsOf(where.dtype, Unused(op))) {}

namespace {

constexpr uint64_t kAlignment = 64;    // bytes
constexpr uint64_t kPiece = 64 << 10;  // elements

uint64_t Aligned(uint64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

void WireBlock::Lay(ops::Communicator& communicator, const BucketPlan& plan) {
  slices_.clear();
  if (format_ == nullptr) return;
  const DType dtype = format_->dtype();
  std::vector<uint64_t> offsets;
  uint64_t bytes = 0;
  for (size_t b = 0; b < plan.buckets.size(); ++b) {
    const Bucket& bucket = plan.buckets[b];
    Slice slice;
    slice.is_used = IsCompressed(bucket.dtype) && !bucket.gradients.empty();
    if (slice.is_used) {
      const uint64_t count = format_->Count(b, Buffer(nullptr, bucket.count, bucket.dtype));
      slice.buffer = Buffer(nullptr, count, dtype);
      if (b + 1 == plan.buckets.size()) slice.flags = plan.gradients.size();
    }
    slices_.push_back(slice);
    offsets.push_back(bytes);
    bytes += Aligned((slice.buffer.count + slice.flags) * SizeOf(dtype));
  }
  memory_ = communicator.Allocate(bytes);
  for (size_t b = 0; b < slices_.size(); ++b)
    slices_[b].buffer.data = static_cast<char*>(memory_->data()) + offsets[b];
  if (slices_.empty()) return;
  const Slice& last = slices_.back();
  flags_ = last.buffer.Slice(last.buffer.count, last.flags);
}

template <typename Body>
void WireBlock::ByPieces(const Buffer& gradients, const Buffer& wire, const Body& body) {
  if (!format_->IsElementwise()) return body(gradients, wire);
  for (uint64_t first = 0; first < gradients.count; first += kPiece) {
    const uint64_t count = std::min(kPiece, gradients.count - first);
    body(gradients.Slice(first, count), wire.Slice(first, count));
    progress_();
  }
}

Buffer WireBlock::Compress(size_t bucket, const Buffer& gradients) {
  const Slice& slice = slices_[bucket];
  ByPieces(gradients, slice.buffer, [&](const Buffer& piece, const Buffer& wire) {
    format_->Compress(bucket, piece, wire);
  });
  Buffer reduced = slice.buffer;
  reduced.count += slice.flags;
  return reduced;
}

void WireBlock::Decompress(size_t bucket, const Buffer& gradients) {
  ByPieces(gradients, slices_[bucket].buffer, [&](const Buffer& piece, const Buffer& wire) {
    format_->Decompress(bucket, wire, piece);
  });
}

}  // namespace dtrun::runtime
