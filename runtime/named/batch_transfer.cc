// The layout of tensors in the memory of a batch. Kinds that only move data move bytes, so that
// tensors of different types share a batch.
//
//   all_reduce, broadcast   one tensor after the other
//   all_gather              by source: its part of each tensor; this rank's part lies in place
//   reduce_scatter          by destination: its share of each tensor; the result lies in place
//   all_to_all              by destination, then a second area by source
//
// A rank that has joined contributes no data to a kind that moves data. To a kind that reduces, it
// contributes the identity element of the operation; for Adasum, a tensor of zeros. If a factor
// would change the identity element (for example, a factor of -1 before a maximum), all ranks
// multiply before they reduce.

#include "runtime/named/batch_transfer.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>

#include "dtrun/types.h"
#include "ops/reduce/reduce.h"
#include "runtime/device/block_device.h"

namespace dtrun::runtime::named {

/// Fills `count` elements of `dtype` at `to` with the identity element of `op`: 0 for a sum,
/// infinity for a minimum, and so on. Integers have their largest or smallest value instead of an
/// infinity.
void FillIdentity(char* to, uint64_t count, DType dtype, ReduceOp op);

Transfer::Transfer(Batch batch, int rank, int size)
    : batch_(std::move(batch)),
      rank_(rank),
      size_(size),
      first_(batch_[0].any),
      direct_(batch_.size() == 1 && batch_[0].part != nullptr && !ScalesFirst()) {}

bool Transfer::ScalesFirst() const {
  const bool linear = first_->op == ReduceOp::kSum || first_->op == ReduceOp::kAverage ||
                      first_->op == ReduceOp::kAdasum;
  return Reduces(kind()) && !linear && first_->before != 1 && !batch_[0].participants.empty();
}

// If a kind moves whole tensors, every rank sends all rows to every rank.
uint64_t Transfer::RowsFromTo(const Item& item, int from, int to) const {
  switch (kind()) {
    case Kind::kAllGather: return item.RowsOf(from);
    case Kind::kAllToAll: return item.RowsTo(from, to, size_);
    case Kind::kReduceScatter: return item.any->RowsTo(to, size_);
    case Kind::kAllReduce:
    case Kind::kBroadcast:
    case Kind::kBarrier: break;
  }
  return item.any->rows();
}

uint64_t Transfer::Bytes(const Item& item, int from, int to) const {
  return RowsFromTo(item, from, to) * item.any->row_bytes();
}

uint64_t Transfer::memory_bytes() const {
  if (direct_) return 0;
  uint64_t bytes = 0;
  for (const Item& item : batch_) {
    switch (kind()) {
      case Kind::kAllGather:
        for (int r = 0; r < size_; ++r) bytes += Bytes(item, r, rank_);
        break;
      case Kind::kAllToAll:
        for (int r = 0; r < size_; ++r) bytes += Bytes(item, rank_, r) + Bytes(item, r, rank_);
        break;
      case Kind::kAllReduce:
      case Kind::kBroadcast:
      case Kind::kReduceScatter:
      case Kind::kBarrier: bytes += item.any->bytes(); break;
    }
  }
  return bytes;
}

// Counts are in elements of the collective: bytes if data is only moved.
ops::Counts Transfer::CountsFrom(int rank) const {
  ops::Counts counts(static_cast<size_t>(size_));
  const uint64_t element = Reduces(kind()) ? SizeOf(first_->dtype) : 1;
  for (int r = 0; r < size_; ++r) {
    for (const Item& item : batch_)
      counts[static_cast<size_t>(r)] += Bytes(item, rank, r) / element;
  }
  return counts;
}

ops::Counts Transfer::CountsTo(int rank) const {
  ops::Counts counts(static_cast<size_t>(size_));
  for (int r = 0; r < size_; ++r) {
    for (const Item& item : batch_) counts[static_cast<size_t>(r)] += Bytes(item, r, rank);
  }
  return counts;
}

// --- start ---------------------------------------------------------------------------------------

// Sets the place and the shape of the result of this rank's part.
void Transfer::MakeResult(const Item& item) {
  Part& part = *item.part;
  const Request& request = *part.request;
  uint64_t rows = request.rows();
  if (kind() == Kind::kAllGather || kind() == Kind::kAllToAll) {
    rows = 0;
    for (int r = 0; r < size_; ++r) rows += RowsFromTo(item, r, rank_);
  }
  if (kind() == Kind::kReduceScatter) rows = request.RowsTo(rank_, size_);
  if (kind() == Kind::kAllToAll) {
    part.received_splits.clear();
    for (int r = 0; r < size_; ++r) part.received_splits.push_back(RowsFromTo(item, r, rank_));
  }
  if (!request.shape.empty() && rows != request.shape[0]) {
    part.result_shape = request.shape;
    part.result_shape[0] = rows;
  }
  const uint64_t count = rows * request.row_elements();
  if (part.output.data == nullptr && count > 0) {
    part.owned = std::make_unique_for_overwrite<char[]>(count * SizeOf(request.dtype));
    part.output = Buffer(part.owned.get(), count, request.dtype);
  }
  part.result = Buffer(part.output.data, count, request.dtype);
}

void Transfer::Start(ops::Communicator& communicator, ops::Adasum& adasum, char* memory) {
  memory_ = memory;
  for (const Item& item : batch_) {
    if (item.part != nullptr) MakeResult(item);
  }
  if (!direct_) Pack();
  const ops::Collective collective = MakeCollective();
  if (!Reduces(kind()) || first_->op != ReduceOp::kAdasum) {
    work_ = communicator.Start(collective);
    return;
  }
  ops::Counts tensors;
  for (const Item& item : batch_) tensors.push_back(item.any->count());
  work_ = adasum.Start(collective.input, collective.output, std::move(tensors), collective.scale);
}

void Transfer::Pack() {
  switch (kind()) {
    case Kind::kAllReduce:
    case Kind::kBroadcast: return PackWhole();
    case Kind::kReduceScatter:
    case Kind::kAllToAll: return PackByDestination();
    case Kind::kAllGather: break;
    case Kind::kBarrier: return;
  }
  char* to = memory_;
  for (int r = 0; r < rank_; ++r) {
    for (const Item& item : batch_) to += Bytes(item, r, rank_);
  }
  for (const Item& item : batch_) {
    if (item.part == nullptr) continue;
    const uint64_t bytes = Bytes(item, rank_, rank_);
    if (bytes > 0) std::memcpy(to, item.part->input.data, bytes);
    to += bytes;
  }
}

// Writes this rank's whole contribution to the collective.
void Transfer::PutWhole(const Item& item, char* to) const {
  const uint64_t count = item.any->count();
  if (count == 0) return;
  if (item.part == nullptr) {
    if (Reduces(kind())) FillIdentity(to, count, first_->dtype, first_->op);
    return;
  }
  const void* from = item.part->input.data;
  void* output = to;
  if (ScalesFirst()) {
    ops::Reduce(&from, 1, &output, 1, count, first_->dtype, {.scale = {first_->before, 1}});
  } else {
    std::memcpy(to, from, item.any->bytes());
  }
}

void Transfer::PackWhole() {
  if (kind() == Kind::kBroadcast && rank_ != first_->root) return;
  char* to = memory_;
  for (const Item& item : batch_) {
    PutWhole(item, to);
    to += item.any->bytes();
  }
}

void Transfer::PackByDestination() {
  std::vector<std::unique_ptr<char[]>> prepared;  // inputs that differ from the caller's
  std::vector<const char*> from;
  for (const Item& item : batch_) {
    const bool as_it_is = item.part != nullptr && !ScalesFirst();
    if (as_it_is || (item.part == nullptr && kind() == Kind::kAllToAll)) {
      from.push_back(as_it_is ? static_cast<const char*>(item.part->input.data) : nullptr);
      continue;
    }
    prepared.push_back(std::make_unique_for_overwrite<char[]>(item.any->bytes()));
    PutWhole(item, prepared.back().get());
    from.push_back(prepared.back().get());
  }
  char* to = memory_;
  for (int r = 0; r < size_; ++r) {
    for (size_t i = 0; i < batch_.size(); ++i) {
      const uint64_t bytes = Bytes(batch_[i], rank_, r);
      if (bytes == 0) continue;
      std::memcpy(to, from[i], bytes);
      from[i] += bytes;
      to += bytes;
    }
  }
}

ops::Collective Transfer::MakeCollective() {
  const Part* part = batch_[0].part;
  const bool reduces = Reduces(kind());
  const DType dtype = reduces ? first_->dtype : DType::kU8;
  uint64_t whole = 0;
  for (const Item& item : batch_) whole += item.any->bytes() / SizeOf(dtype);
  ops::Collective collective;
  const auto as_elements = [dtype](const Buffer& buffer) {
    return Buffer(buffer.data, buffer.bytes() / SizeOf(dtype), dtype);
  };
  if (direct_) {
    collective.input = as_elements(part->input);
    collective.output = as_elements(part->result);
  } else {
    collective.input = collective.output = Buffer(memory_, whole, dtype);
  }
  if (reduces) {
    collective.op = first_->op;
    collective.scale = {ScalesFirst() ? 1 : first_->before, first_->after};
    const auto& participants = batch_[0].participants;
    if (first_->op == ReduceOp::kAverage && !participants.empty()) {
      collective.divisor =
          static_cast<int>(std::count(participants.begin(), participants.end(), 1));
    }
  }
  const auto slot = static_cast<size_t>(rank_);
  switch (kind()) {
    case Kind::kAllReduce: collective.kind = ops::CollectiveKind::kAllReduce; break;
    case Kind::kBroadcast:
      collective.kind = ops::CollectiveKind::kBroadcast;
      collective.root = first_->root;
      break;
    case Kind::kReduceScatter: {
      collective.kind = ops::CollectiveKind::kReduceScatter;
      collective.send_counts = CountsFrom(rank_);
      if (direct_) break;
      uint64_t before = 0;
      for (size_t r = 0; r < slot; ++r) before += collective.send_counts[r];
      collective.output = collective.input.Slice(before, collective.send_counts[slot]);
      break;
    }
    case Kind::kAllGather: {
      collective.kind = ops::CollectiveKind::kAllGather;
      collective.receive_counts = CountsTo(rank_);
      if (direct_) break;
      uint64_t before = 0, all = 0;
      for (size_t r = 0; r < collective.receive_counts.size(); ++r) {
        if (r < slot) before += collective.receive_counts[r];
        all += collective.receive_counts[r];
      }
      collective.output = Buffer(memory_, all, dtype);
      collective.input = collective.output.Slice(before, collective.receive_counts[slot]);
      break;
    }
    case Kind::kAllToAll: {
      collective.kind = ops::CollectiveKind::kAllToAll;
      collective.send_counts = CountsFrom(rank_);
      collective.receive_counts = CountsTo(rank_);
      if (direct_) break;
      uint64_t sent = 0, received = 0;
      for (const uint64_t count : collective.send_counts) sent += count;
      for (const uint64_t count : collective.receive_counts) received += count;
      collective.input = Buffer(memory_, sent, dtype);
      collective.output = Buffer(memory_ + sent, received, dtype);
      break;
    }
    case Kind::kBarrier: break;
  }
  return collective;
}

// --- finish --------------------------------------------------------------------------------------

void Transfer::Finish() {
  Unpack();
  for (const Item& item : batch_) {
    if (item.part == nullptr || item.part->gpu.result.device < 0) continue;
    runtime::Copy(item.part->result, item.part->gpu.result);
    item.part->result = item.part->gpu.result;
  }
}

void Transfer::Unpack() {
  if (direct_) {
    const Part& part = *batch_[0].part;
    // At the root of a broadcast, the result is still in the input.
    const bool at_root = kind() == Kind::kBroadcast && rank_ == first_->root;
    if (at_root && part.result.data != part.input.data && part.result.count > 0)
      std::memcpy(part.result.data, part.input.data, part.result.bytes());
    return;
  }
  switch (kind()) {
    case Kind::kAllReduce:
    case Kind::kBroadcast: return UnpackWhole();
    case Kind::kAllGather:
    case Kind::kAllToAll: return UnpackBySource();
    case Kind::kReduceScatter: break;
    case Kind::kBarrier: return;
  }
  const char* from = memory_;
  for (int r = 0; r < rank_; ++r) {
    for (const Item& item : batch_) from += Bytes(item, rank_, r);
  }
  for (const Item& item : batch_) {
    const uint64_t bytes = Bytes(item, rank_, rank_);
    if (item.part != nullptr && bytes > 0) std::memcpy(item.part->result.data, from, bytes);
    from += bytes;
  }
}

void Transfer::UnpackWhole() {
  const char* from = memory_;
  for (const Item& item : batch_) {
    const uint64_t bytes = item.any->bytes();
    if (item.part != nullptr && bytes > 0) std::memcpy(item.part->result.data, from, bytes);
    from += bytes;
  }
}

void Transfer::UnpackBySource() {
  const char* from = memory_;
  if (kind() == Kind::kAllToAll) {
    for (const uint64_t count : CountsFrom(rank_)) from += count;
  }
  std::vector<char*> to;
  for (const Item& item : batch_) {
    to.push_back(item.part == nullptr ? nullptr : static_cast<char*>(item.part->result.data));
  }
  for (int r = 0; r < size_; ++r) {
    for (size_t i = 0; i < batch_.size(); ++i) {
      const uint64_t bytes = Bytes(batch_[i], r, rank_);
      if (batch_[i].part != nullptr && bytes > 0) {
        std::memcpy(to[i], from, bytes);
        to[i] += bytes;
      }
      from += bytes;
    }
  }
}

namespace {

template <typename T>
T IdentityOf(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAverage:
    case ReduceOp::kAdasum: return T(0);
    case ReduceOp::kProduct: return T(1);
    case ReduceOp::kMin:
      return std::numeric_limits<T>::has_infinity ? std::numeric_limits<T>::infinity()
                                                  : std::numeric_limits<T>::max();
    case ReduceOp::kMax:
      return std::numeric_limits<T>::has_infinity ? -std::numeric_limits<T>::infinity()
                                                  : std::numeric_limits<T>::lowest();
  }
  return T(0);
}

template <typename T>
void Fill(char* to, uint64_t count, T value) {
  T* const first = reinterpret_cast<T*>(to);
  std::fill(first, first + count, value);
}

// The identity element of a 16-bit float type with these bits of 1 and infinity.
uint16_t HalfIdentity(ReduceOp op, uint16_t one, uint16_t infinity) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAverage:
    case ReduceOp::kAdasum: return 0;
    case ReduceOp::kProduct: return one;
    case ReduceOp::kMin: return infinity;
    case ReduceOp::kMax: return static_cast<uint16_t>(infinity | 0x8000);
  }
  return 0;
}

}  // namespace

void FillIdentity(char* to, uint64_t count, DType dtype, ReduceOp op) {
  switch (dtype) {
    case DType::kU8: return Fill(to, count, IdentityOf<uint8_t>(op));
    case DType::kI8: return Fill(to, count, IdentityOf<int8_t>(op));
    case DType::kU16: return Fill(to, count, IdentityOf<uint16_t>(op));
    case DType::kI16: return Fill(to, count, IdentityOf<int16_t>(op));
    case DType::kU32: return Fill(to, count, IdentityOf<uint32_t>(op));
    case DType::kI32: return Fill(to, count, IdentityOf<int32_t>(op));
    case DType::kU64: return Fill(to, count, IdentityOf<uint64_t>(op));
    case DType::kI64: return Fill(to, count, IdentityOf<int64_t>(op));
    case DType::kF16: return Fill(to, count, HalfIdentity(op, 0x3c00, 0x7c00));
    case DType::kBF16: return Fill(to, count, HalfIdentity(op, 0x3f80, 0x7f80));
    case DType::kF32: return Fill(to, count, IdentityOf<float>(op));
    case DType::kF64: return Fill(to, count, IdentityOf<double>(op));
    case DType::kBool: {
      const bool is_and = op == ReduceOp::kProduct || op == ReduceOp::kMin;
      return Fill(to, count, static_cast<uint8_t>(is_and ? 1 : 0));
    }
  }
}

TransferLine::TransferLine(
    ops::Communicator& communicator, ops::Engine& engine, uint64_t piece_bytes)
    : communicator_(communicator.Duplicate()),
      adasum_(*communicator_, engine),
      piece_bytes_(piece_bytes),
      pieces_(communicator_->Allocate(kPieces * piece_bytes)) {}

// Peers may still read or write the memory of transfers under way.
TransferLine::~TransferLine() {
  for (Moving& moving : moving_) {
    if (moving.own_memory != nullptr) ops::Keep(std::move(moving.own_memory));
  }
  if (!moving_.empty()) ops::Keep(std::move(pieces_));
}

void TransferLine::Add(Batch batch) {
  moving_.push_back(
      {.transfer = Transfer(std::move(batch), communicator_->rank(), communicator_->size())});
}

bool TransferLine::Advance(const std::function<void(const Batch&)>& finish) {
  const bool finished = Finish(finish);
  return Start() || finished;
}

// Starts each transfer as soon as there is memory for it.
bool TransferLine::Start() {
  bool advanced = false;
  for (; started_ < moving_.size(); ++started_) {
    Moving& moving = moving_[started_];
    const uint64_t bytes = moving.transfer.memory_bytes();
    char* memory = nullptr;
    if (bytes > piece_bytes_) {
      moving.own_memory = ops::AllocatePrivate(bytes);
      memory = static_cast<char*>(moving.own_memory->data());
    } else if (bytes > 0) {
      if (pieces_taken_ == kPieces) break;
      ++pieces_taken_;
      moving.has_piece = true;
      memory = static_cast<char*>(pieces_->data()) + next_piece_ * piece_bytes_;
      next_piece_ = (next_piece_ + 1) % kPieces;
    }
    moving.transfer.Start(*communicator_, adasum_, memory);
    advanced = true;
  }
  return advanced;
}

// Finishes transfers in order too, because the pieces of memory are used in a cycle.
bool TransferLine::Finish(const std::function<void(const Batch&)>& finish) {
  bool advanced = false;
  while (started_ > 0 && moving_.front().transfer.Done()) {
    Moving& moving = moving_.front();
    moving.transfer.Finish();
    finish(moving.transfer.batch());
    if (moving.has_piece) --pieces_taken_;
    moving_.pop_front();
    --started_;
    advanced = true;
  }
  return advanced;
}

}  // namespace dtrun::runtime::named
