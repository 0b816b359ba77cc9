#ifndef DTRUN_MODELS_DATA_BATCH_MAKER_H_
#define DTRUN_MODELS_DATA_BATCH_MAKER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "models/data/pipeline.h"
#include "models/data/pipeline_node.h"

namespace dtrun::models {

/// One pass through what comes out of a pipeline's step, and then the next: a pure function of the
/// pipeline and the pass's number. Only numbers of examples flow here, nothing is computed of them;
/// so it is cheap to pass over some. Not thread-safe. Allocates in its first pass only.
template <typename T>
class Stream {
 public:
  virtual ~Stream() = default;

  /// Begins pass `pass`, from 0. Comes before the other functions.
  virtual void Start(uint64_t pass) = 0;
  /// False at the pass's end, and from then on.
  virtual bool Next(T* out) = 0;
  /// Passes over `count`, or as many as there are; returns how many.
  virtual uint64_t Skip(uint64_t count) = 0;
};

using RefBatch = std::vector<ExampleRef>;

/// What comes out of `node`, when the source has the files of `share` only. `node` outlives it and
/// has no Batch before it.
std::unique_ptr<Stream<ExampleRef>> OpenExamples(const Node& node, const FileShare& share);

/// The same for a node that has one, with `batch` examples in a full batch.
std::unique_ptr<Stream<RefBatch>> OpenBatches(
    const Node& node, const FileShare& share, uint64_t batch);

/// What `cache`, a Cache, keeps of the files of `share`.
std::shared_ptr<CacheTable> CacheTableOf(const Node& cache, const FileShare& share);

/// How many examples each batch of an epoch has: all that other ranks need to know of a rank's
/// pipeline. Plain numbers, so that ranks can exchange it.
class BatchSizes {
 public:
  /// Of the batches that `node` makes of the examples of `share`, with `batch` examples in a full
  /// one. `node` has a Batch.
  BatchSizes(const Node& node, const FileShare& share, uint64_t batch);
  /// What `Pack` returned.
  explicit BatchSizes(const std::vector<uint64_t>& packed);

  std::vector<uint64_t> Pack() const { return numbers_; }

  /// Examples of a full batch.
  uint64_t full_batch() const { return numbers_[kBatch]; }
  /// Of one epoch; kInfinite.
  uint64_t batches() const;
  /// Examples of a batch; 0 behind the last one.
  uint64_t size(uint64_t batch) const;

 private:
  enum class Kind : uint64_t { kTake, kSkip, kRepeat };
  static constexpr size_t kExamples = 0, kBatch = 1, kDrops = 2, kFirstStep = 3;

  uint64_t BatchesBefore(size_t step) const;

  // Examples, batch, whether a rest is dropped; then kind and number of each step behind Batch.
  std::vector<uint64_t> numbers_;
};

/// What a pipeline's functions make of an example, by way of its Caches. Not thread-safe. Allocates
/// when it is made, only.
class Evaluator {
 public:
  /// `node` outlives it.
  Evaluator(const Node& node, const FileShare& share);

  /// Whether there is anything to compute.
  bool computes() const { return computes_; }
  /// Reads the files of the share into memory. Throws Error.
  void LoadFiles() const;
  /// Where nothing is computed: the example as the source has it.
  ExampleRow Row(const ExampleRef& ref) const;
  /// Writes the values and the label.
  void Evaluate(const ExampleRef& ref, float* values, int32_t* label);

 private:
  // The functions behind the source, or behind a Cache.
  struct Stage {
    std::shared_ptr<CacheTable> table;  // null at the source
    std::vector<const Node*> maps;
    std::vector<float> scratch[2];
  };

  void RunStage(size_t stage, const ExampleRef& ref, float* values, int32_t* label);
  void ReadInput(size_t stage, const ExampleRef& ref, float* values, int32_t* label);
  void ReadSource(const ExampleRef& ref, float* values, int32_t* label) const;

  const ExampleSource& source_;
  FileShare share_;
  std::vector<Stage> stages_;  // from the source on
  bool computes_ = false;
};

/// What one rank reads of a pipeline.
struct ReadPlan {
  Pipeline pipeline;
  int rank = 0, ranks = 1;
  uint64_t batches = 0;  ///< of one epoch, on every rank
  /// Where each rank has a stream of its own: the files it reads, the examples of its full batches,
  /// and what all ranks' batches hold. Else, `own_batch` being 0, every rank has the same stream of
  /// global batches and takes its part of each.
  FileShare files = {};
  uint64_t own_batch = 0;
  std::vector<BatchSizes> sizes = {};
  int compute_threads = 0;
};

/// The plan of a world of one. Throws Error kInvalidArgument when there is no Batch
/// or an epoch has no batch.
ReadPlan PlanAlone(const Pipeline& pipeline);

/// Throws Error kInvalidArgument when an epoch has none.
void ExpectBatches(const Pipeline& pipeline, uint64_t batches);

/// Makes a rank's batches, one after the other. Not thread-safe.
class BatchMaker {
 public:
  BatchMaker(std::shared_ptr<const ReadPlan> plan, const Position& start);

  /// Makes the next batch; false at the end of an epoch. After an exception the next call tries the
  /// same batch again.
  bool Make(Batch* batch);
  void Seek(const Position& position);
  const Position& position() const { return position_; }

 private:
  void ReadRefs();
  void Place(Batch* batch);
  void PlacePart(Batch* batch);
  void PlaceOwn(Batch* batch) const;
  void Fill(Batch* batch);
  void FillWithRows(Batch* batch) const;

  std::shared_ptr<const ReadPlan> plan_;
  Evaluator evaluator_;
  std::unique_ptr<Stream<RefBatch>> refs_stream_;
  RefBatch refs_;
  size_t first_ref_ = 0;  // of this rank's part
  Position position_;
  bool started_ = false;  // the stream stands at the position
};

}  // namespace dtrun::models

#endif  // DTRUN_MODELS_DATA_BATCH_MAKER_H_
