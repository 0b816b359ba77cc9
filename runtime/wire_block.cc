#include "runtime/wire_block.h"

#include <algorithm>

namespace dtrun::runtime {
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
