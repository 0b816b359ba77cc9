#ifndef DTRUN_MODELS_DATA_BASIC_STREAMS_H_
#define DTRUN_MODELS_DATA_BASIC_STREAMS_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>

#include "models/data/stream.h"

namespace dtrun::models {

/// Take, Skip and Repeat, of examples or of batches.

template <typename T>
using StreamPtr = std::unique_ptr<Stream<T>>;

template <typename T>
class TakeStream : public Stream<T> {
 public:
  TakeStream(StreamPtr<T> input, uint64_t count) : input_(std::move(input)), count_(count) {}

  void Start(uint64_t pass) override {
    input_->Start(pass);
    left_ = count_;
  }
  bool Next(T* out) override {
    if (left_ == 0 || !input_->Next(out)) return false;
    --left_;
    return true;
  }
  uint64_t Skip(uint64_t count) override {
    const uint64_t skipped = input_->Skip(std::min(count, left_));
    left_ -= skipped;
    return skipped;
  }

 private:
  StreamPtr<T> input_;
  uint64_t count_, left_ = 0;
};

template <typename T>
class SkipStream : public Stream<T> {
 public:
  SkipStream(StreamPtr<T> input, uint64_t count) : input_(std::move(input)), count_(count) {}

  void Start(uint64_t pass) override {
    input_->Start(pass);
    input_->Skip(count_);
  }
  bool Next(T* out) override { return input_->Next(out); }
  uint64_t Skip(uint64_t count) override { return input_->Skip(count); }

 private:
  StreamPtr<T> input_;
  uint64_t count_;
};

/// Repetition k of pass n is the input's pass n * times + k.
template <typename T>
class RepeatStream : public Stream<T> {
 public:
  RepeatStream(StreamPtr<T> input, uint64_t times) : input_(std::move(input)), times_(times) {}

  void Start(uint64_t pass) override {
    first_pass_ = times_ == kInfinite ? pass << 32 : pass * times_;
    repetition_ = 0;
    ended_ = times_ == 0;
    StartRepetition();
  }
  bool Next(T* out) override {
    while (!ended_) {
      if (input_->Next(out)) {
        empty_ = false;
        return true;
      }
      EndRepetition();
    }
    return false;
  }
  uint64_t Skip(uint64_t count) override {
    uint64_t skipped = 0;
    while (skipped < count && !ended_) {
      const uint64_t here = input_->Skip(count - skipped);
      skipped += here;
      empty_ &= here == 0;
      if (skipped < count) EndRepetition();
    }
    return skipped;
  }

 private:
  void StartRepetition() {
    empty_ = true;
    if (!ended_) input_->Start(first_pass_ + repetition_);
  }
  // Nothing, repeated without end, would keep the caller for ever.
  void EndRepetition() {
    ended_ = empty_ || ++repetition_ == times_;
    StartRepetition();
  }

  StreamPtr<T> input_;
  uint64_t times_, first_pass_ = 0, repetition_ = 0;
  bool empty_ = true, ended_ = true;
};

}  // namespace dtrun::models

#endif
