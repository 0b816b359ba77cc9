#include "runtime/named/transfer_line.h"

#include <utility>

namespace dtrun::runtime::named {

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
