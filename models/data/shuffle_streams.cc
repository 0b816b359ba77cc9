#include "models/data/shuffle_streams.h"

#include <algorithm>
#include <utility>

namespace dtrun::models {
namespace {

uint64_t EpochOf(const ShuffleOptions& options, uint64_t pass) {
  return options.reshuffle_each_epoch ? pass : 0;
}

}  // namespace

WholeShuffleStream::WholeShuffleStream(
    std::unique_ptr<Stream<ExampleRef>> input, uint64_t count, const ShuffleOptions& options)
    : input_(std::move(input)), options_(options), refs_(count), order_(count) {}

void WholeShuffleStream::Start(uint64_t pass) {
  input_->Start(pass);
  pass_ = pass;
  next_ = 0;
  filled_ = false;
}

void WholeShuffleStream::Fill() {
  for (ExampleRef& ref : refs_) input_->Next(&ref);
  WriteEpochOrder(options_.seed, EpochOf(options_, pass_), order_);
  filled_ = true;
}

bool WholeShuffleStream::Next(ExampleRef* out) {
  if (next_ == refs_.size()) return false;
  if (!filled_) Fill();
  *out = refs_[order_[next_++]];
  return true;
}

uint64_t WholeShuffleStream::Skip(uint64_t count) {
  const uint64_t skipped = std::min(count, refs_.size() - next_);
  next_ += skipped;
  return skipped;
}

BufferShuffleStream::BufferShuffleStream(
    std::unique_ptr<Stream<ExampleRef>> input, const ShuffleOptions& options)
    : input_(std::move(input)), options_(options), words_(options.seed, 0) {
  buffer_.reserve(options.buffer);
}

void BufferShuffleStream::Start(uint64_t pass) {
  input_->Start(pass);
  words_ = ShuffleWords(options_.seed, EpochOf(options_, pass));
  buffer_.clear();
  filled_ = false;
}

void BufferShuffleStream::Fill() {
  ExampleRef ref;
  while (buffer_.size() < options_.buffer && input_->Next(&ref)) buffer_.push_back(ref);
  filled_ = true;
}

bool BufferShuffleStream::Next(ExampleRef* out) {
  if (!filled_) Fill();
  if (buffer_.empty()) return false;
  ExampleRef& drawn = buffer_[words_.Below(static_cast<uint32_t>(buffer_.size()))];
  *out = drawn;
  if (!input_->Next(&drawn)) {
    drawn = buffer_.back();
    buffer_.pop_back();
  }
  return true;
}

uint64_t BufferShuffleStream::Skip(uint64_t count) {
  uint64_t skipped = 0;
  for (ExampleRef ref; skipped < count && Next(&ref);) ++skipped;
  return skipped;
}

}  // namespace dtrun::models
