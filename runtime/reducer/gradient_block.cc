// A HostBlock copies gradients in pieces and has the flags behind the last bucket. A DeviceBlock
// enqueues copies into the trainer's stream and keeps the flags in host memory. A WireBlock
// converts buckets, or copies of them in host memory, to the wire format and back, in pieces if the
// format is element-wise.

#include "runtime/reducer/gradient_block.h"

#include <algorithm>
#include <utility>

#include "dtrun/error.h"
#include "runtime/device/block_device.h"

namespace dtrun::runtime {

Buffer GradientBlock::GradientAt(ops::Memory& memory, size_t i) const {
  const GradientSpec& spec = plan_.gradients[i];
  return Buffer(static_cast<char*>(memory.data()) + plan_.offsets[i], spec.count, spec.dtype);
}

Buffer GradientBlock::BucketAt(ops::Memory& memory, size_t b) const {
  const Bucket& bucket = plan_.buckets[b];
  return Buffer(static_cast<char*>(memory.data()) + bucket.offset, bucket.count, bucket.dtype);
}

void GradientBlock::Clear() {
  for (size_t b = 0; b < plan_.buckets.size(); ++b)
    if (!plan_.buckets[b].is_single) Clear(bucket(b));
}

// If an operation was given up, its peers may still write.
bool AreDone(const std::vector<ops::Work>& works) {
  return std::all_of(works.begin(), works.end(), [](const ops::Work& work) {
    try {
      return work.Done();
    } catch (const Error&) {
      return false;
    }
  });
}

namespace {

// --- in host memory -----------------------------------------------------------------------------

class HostBlock : public GradientBlock {
 public:
  HostBlock(ops::Communicator& communicator, const BucketPlan& plan)
      : GradientBlock(plan), memory_(communicator.Allocate(plan.block_bytes)) {}

  Buffer gradient(size_t i) const override { return GradientAt(*memory_, i); }
  Buffer bucket(size_t b) const override { return BucketAt(*memory_, b); }
  Buffer flags() override {
    const FlagPlan& flags = plan().flags;
    return Buffer(static_cast<char*>(memory_->data()) + flags.offset, flags.count, flags.dtype);
  }
  bool flags_are_apart() const override { return false; }

  void Copy(const Buffer& to, const void* from, const std::function<void()>& progress) override {
    constexpr uint64_t kCopied = 256 << 10;  // bytes
    for (uint64_t begin = 0; begin < to.bytes(); begin += kCopied) {
      std::memcpy(
          static_cast<char*>(to.data) + begin, static_cast<const char*>(from) + begin,
          std::min(kCopied, to.bytes() - begin));
      progress();
    }
  }
  void Clear(const Buffer& buffer) override {
    if (buffer.count > 0) std::memset(buffer.data, 0, buffer.bytes());
  }
  void BeginReduction() override {}
  void EndReductions() override {}

  bool IsIdle(const std::vector<ops::Work>& works) override { return AreDone(works); }
  void Keep() override { ops::Keep(std::move(memory_)); }

 private:
  std::unique_ptr<ops::Memory> memory_;
};

// --- on a GPU -----------------------------------------------------------------------------------

class DeviceBlock : public GradientBlock {
 public:
  DeviceBlock(
      ops::Communicator& communicator, const BucketPlan& plan, int device,
      std::unique_ptr<DeviceGradients> gpu)
      : GradientBlock(plan),
        device_(device),
        gpu_(std::move(gpu)),
        memory_(communicator.AllocateOnDevice(device, plan.block_bytes)) {}

  Buffer gradient(size_t i) const override { return Here(GradientAt(*memory_, i)); }
  Buffer bucket(size_t b) const override {
    return OnDevice(BucketAt(*memory_, b), gpu_->reduction_stream());
  }
  Buffer flags() override {
    const FlagPlan& flags = plan().flags;
    flags_.resize(flags.count * SizeOf(flags.dtype));
    return Buffer(flags_.data(), flags.count, flags.dtype);
  }
  bool flags_are_apart() const override { return true; }

  void Copy(const Buffer& to, const void* from, const std::function<void()>&) override {
    const Buffer source(const_cast<void*>(from), to.count, to.dtype);
    runtime::Copy(Here(source), Here(to));
  }
  void Clear(const Buffer& buffer) override { BlockDeviceOf(Here(buffer)).Clear(Here(buffer)); }
  void BeginReduction() override { gpu_->BeginReduction(); }
  void EndReductions() override { gpu_->EndReductions(); }

  bool IsIdle(const std::vector<ops::Work>& works) override {
    try {
      gpu_->Synchronize();
      return AreDone(works);
    } catch (const Error&) {
      return false;
    }
  }
  void Keep() override { ops::Keep(std::move(memory_)); }

 private:
  Buffer Here(Buffer buffer) const { return OnDevice(buffer, gpu_->trainer_stream()); }
  Buffer OnDevice(Buffer buffer, void* stream) const {
    buffer.stream = stream;
    buffer.device = device_;
    return buffer;
  }

  int device_;
  std::unique_ptr<DeviceGradients> gpu_;
  std::unique_ptr<ops::Memory> memory_;
  std::vector<char> flags_;
};

}  // namespace

std::unique_ptr<GradientBlock> MakeGradientBlock(
    ops::Communicator& communicator, const BucketPlan& plan,
    const std::vector<Gradient>& gradients) {
  const int device = gradients.empty() ? -1 : gradients[0].buffer.device;
  if (device < 0) return std::make_unique<HostBlock>(communicator, plan);
  return std::make_unique<DeviceBlock>(
      communicator, plan, device, MakeDeviceGradients(device, gradients[0].buffer.stream));
}

namespace {

// --- flags --------------------------------------------------------------------------------------

// The neutral value of the reduction. A reduced flag has this value only if no rank used the
// gradient.
double Unused(ReduceOp op) { return op == ReduceOp::kMin || op == ReduceOp::kProduct ? 1 : 0; }

// The bits of 0 or 1.
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

// --- on the wire --------------------------------------------------------------------------------

constexpr uint64_t kPiece = 64 << 10;  // elements

}  // namespace

void WireBlock::Lay(ops::Communicator& communicator, const BucketPlan& plan, bool with_flags) {
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
      if (with_flags && b + 1 == plan.buckets.size()) slice.flags = plan.gradients.size();
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

Buffer WireBlock::Here(const Buffer& gradients) {
  if (gradients.device < 0) return gradients;
  copy_.resize(gradients.bytes());
  return Buffer(copy_.data(), gradients.count, gradients.dtype);
}

Buffer WireBlock::Compress(size_t bucket, const Buffer& gradients) {
  const Slice& slice = slices_[bucket];
  const Buffer here = Here(gradients);
  if (gradients.device >= 0) Copy(gradients, here);
  ByPieces(here, slice.buffer, [&](const Buffer& piece, const Buffer& wire) {
    format_->Compress(bucket, piece, wire);
  });
  Buffer reduced = slice.buffer;
  reduced.count += slice.flags;
  return reduced;
}

void WireBlock::Decompress(size_t bucket, const Buffer& gradients) {
  const Buffer here = Here(gradients);
  ByPieces(here, slices_[bucket].buffer, [&](const Buffer& piece, const Buffer& wire) {
    format_->Decompress(bucket, wire, piece);
  });
  if (gradients.device >= 0) Copy(here, gradients);
}

}  // namespace dtrun::runtime
