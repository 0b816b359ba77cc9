#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "models/data/batch_maker.h"
#include "models/data/pipeline.h"
#include "models/data/sampling.h"

// OpenExamples and OpenBatches build one stream per step, from the source on. Each stream reads
// elements from its input. Skip passes over elements without reading them, if the step allows that.
// A shard, and a shuffle through a small buffer, must read each element.

namespace dtrun::models {

/// The steps Take, Skip and Repeat, for examples and for batches.

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

/// Repetition k of pass n is the input's pass n * times + k. Without end, it is n * 2^32 + k.
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
  // An empty input ends the stream. Without this rule, an endless repetition would never return.
  void EndRepetition() {
    ended_ = empty_ || ++repetition_ == times_;
    StartRepetition();
  }

  StreamPtr<T> input_;
  uint64_t times_, first_pass_ = 0, repetition_ = 0;
  bool empty_ = true, ended_ = true;
};

/// A shuffle through a buffer that holds all `count` examples of its input, in EpochOrder.
class WholeShuffleStream : public Stream<ExampleRef> {
 public:
  WholeShuffleStream(
      std::unique_ptr<Stream<ExampleRef>> input, uint64_t count, const ShuffleOptions& options);

  void Start(uint64_t pass) override;
  bool Next(ExampleRef* out) override;
  uint64_t Skip(uint64_t count) override;

 private:
  void Fill();

  std::unique_ptr<Stream<ExampleRef>> input_;
  ShuffleOptions options_;
  uint64_t pass_ = 0, next_ = 0;
  bool filled_ = false;
  std::vector<ExampleRef> refs_;
  std::vector<uint32_t> order_;
};

/// A shuffle through a smaller buffer. Each draw takes a random entry of the buffer, and the next
/// example of the input replaces it.
class BufferShuffleStream : public Stream<ExampleRef> {
 public:
  BufferShuffleStream(std::unique_ptr<Stream<ExampleRef>> input, const ShuffleOptions& options);

  void Start(uint64_t pass) override;
  bool Next(ExampleRef* out) override;
  uint64_t Skip(uint64_t count) override;

 private:
  void Fill();

  std::unique_ptr<Stream<ExampleRef>> input_;
  ShuffleOptions options_;
  ShuffleWords words_;
  bool filled_ = false;
  std::vector<ExampleRef> buffer_;
};

namespace {

using Examples = std::unique_ptr<Stream<ExampleRef>>;
using Batches = std::unique_ptr<Stream<RefBatch>>;

// The examples of the share's files, file by file.
class SourceStream : public Stream<ExampleRef> {
 public:
  SourceStream(const ExampleSource& source, const FileShare& share)
      : begins_(source.file_begins()), share_(share) {}

  void Start(uint64_t pass) override {
    pass_ = pass;
    OpenFile(static_cast<size_t>(share_.rank));
  }
  bool Next(ExampleRef* out) override {
    while (next_ == end_) {
      if (!OpenNextFile()) return false;
    }
    *out = {next_++, pass_};
    return true;
  }
  uint64_t Skip(uint64_t count) override {
    uint64_t skipped = 0;
    do {
      const uint64_t here = std::min(count - skipped, end_ - next_);
      next_ += here;
      skipped += here;
    } while (skipped < count && OpenNextFile());
    return skipped;
  }

 private:
  size_t files() const { return begins_.size() - 1; }
  void OpenFile(size_t file) {
    file_ = file;
    next_ = file < files() ? begins_[file] : 0;
    end_ = file < files() ? begins_[file + 1] : 0;
  }
  bool OpenNextFile() {
    if (file_ >= files()) return false;
    OpenFile(file_ + static_cast<size_t>(share_.ranks));
    return file_ < files();
  }

  const std::vector<uint64_t>& begins_;
  FileShare share_;
  uint64_t pass_ = 0, next_ = 0, end_ = 0;
  size_t file_ = 0;
};

class ShardStream : public Stream<ExampleRef> {
 public:
  ShardStream(Examples input, const ShardStep& shard) : input_(std::move(input)), shard_(shard) {}

  void Start(uint64_t pass) override {
    input_->Start(pass);
    before_next_ = shard_.index;
  }
  bool Next(ExampleRef* out) override {
    if (input_->Skip(before_next_) < before_next_ || !input_->Next(out)) return false;
    before_next_ = shard_.shards - 1;
    return true;
  }
  uint64_t Skip(uint64_t count) override {
    uint64_t skipped = 0;
    for (ExampleRef ref; skipped < count && Next(&ref);) ++skipped;
    return skipped;
  }

 private:
  Examples input_;
  ShardStep shard_;
  uint64_t before_next_ = 0;
};

// The examples in a Cache, in the order of their table.
class CacheStream : public Stream<ExampleRef> {
 public:
  explicit CacheStream(std::shared_ptr<const CacheTable> table) : table_(std::move(table)) {}

  void Start(uint64_t pass) override {
    pass_ = pass;
    next_ = 0;
  }
  bool Next(ExampleRef* out) override {
    if (next_ == table_->count()) return false;
    *out = {next_++, pass_};
    return true;
  }
  uint64_t Skip(uint64_t count) override {
    const uint64_t skipped = std::min(count, table_->count() - next_);
    next_ += skipped;
    return skipped;
  }

 private:
  std::shared_ptr<const CacheTable> table_;
  uint64_t pass_ = 0, next_ = 0;
};

class BatchStream : public Stream<RefBatch> {
 public:
  BatchStream(Examples input, uint64_t size, Remainder remainder)
      : input_(std::move(input)), size_(size), remainder_(remainder) {}

  void Start(uint64_t pass) override { input_->Start(pass); }
  bool Next(RefBatch* out) override {
    out->clear();
    ExampleRef ref;
    while (out->size() < size_ && input_->Next(&ref)) out->push_back(ref);
    return !out->empty() && (out->size() == size_ || remainder_ == Remainder::kKeep);
  }
  uint64_t Skip(uint64_t count) override {
    const uint64_t examples = input_->Skip(std::min(count, kInfinite / size_) * size_);
    return examples / size_ + (remainder_ == Remainder::kKeep && examples % size_ > 0);
  }

 private:
  Examples input_;
  uint64_t size_;
  Remainder remainder_;
};

Examples OpenShuffle(const Node& node, const FileShare& share, const ShuffleOptions& options) {
  const uint64_t count = CountOf(*node.input, share);
  Examples input = OpenExamples(*node.input, share);
  if (count <= options.buffer)
    return std::make_unique<WholeShuffleStream>(std::move(input), count, options);
  return std::make_unique<BufferShuffleStream>(std::move(input), options);
}

template <typename T>
std::unique_ptr<Stream<T>> OpenBasic(const Node& node, std::unique_ptr<Stream<T>> input) {
  if (const auto* take = node.as<TakeStep>())
    return std::make_unique<TakeStream<T>>(std::move(input), take->count);
  if (const auto* skip = node.as<SkipStep>())
    return std::make_unique<SkipStream<T>>(std::move(input), skip->count);
  if (const auto* repeat = node.as<RepeatStep>())
    return std::make_unique<RepeatStream<T>>(std::move(input), repeat->times);
  return input;  // Map and Prefetch change no order
}

}  // namespace

Examples OpenExamples(const Node& node, const FileShare& share) {
  if (const auto* source = node.as<SourceStep>())
    return std::make_unique<SourceStream>(*source->source, share);
  if (node.as<CacheStep>() != nullptr)
    return std::make_unique<CacheStream>(CacheTableOf(node, share));
  if (const auto* shuffle = node.as<ShuffleStep>())
    return OpenShuffle(node, share, shuffle->options);
  if (const auto* shard = node.as<ShardStep>())
    return std::make_unique<ShardStream>(OpenExamples(*node.input, share), *shard);
  return OpenBasic(node, OpenExamples(*node.input, share));
}

Batches OpenBatches(const Node& node, const FileShare& share, uint64_t batch) {
  if (const auto* step = node.as<BatchStep>()) {
    return std::make_unique<BatchStream>(OpenExamples(*node.input, share), batch, step->remainder);
  }
  return OpenBasic(node, OpenBatches(*node.input, share, batch));
}

// The table lists the first pass of the steps before the Cache.
std::shared_ptr<CacheTable> CacheTableOf(const Node& cache, const FileShare& share) {
  return cache.as<CacheStep>()->tables->Get({share.rank, share.ranks}, [&] {
    const Examples input = OpenExamples(*cache.input, share);
    std::vector<ExampleRef> refs;
    input->Start(0);
    for (ExampleRef ref; input->Next(&ref);) refs.push_back(ref);
    const bool computes = ComputesSinceCache(*cache.input);
    return std::make_shared<CacheTable>(std::move(refs), computes ? cache.shape.count() : 0);
  });
}

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
