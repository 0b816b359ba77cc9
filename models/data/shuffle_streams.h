#ifndef DTRUN_MODELS_DATA_SHUFFLE_STREAMS_H_
#define DTRUN_MODELS_DATA_SHUFFLE_STREAMS_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "models/data/pipeline.h"
#include "models/data/sampling.h"
#include "models/data/stream.h"

namespace dtrun::models {

/// A shuffle whose buffer holds all `count` examples of its input: EpochOrder.
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

/// A shuffle with a smaller buffer: one of those in it is drawn, and the next of the input takes
/// its place.
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

}  // namespace dtrun::models

#endif
