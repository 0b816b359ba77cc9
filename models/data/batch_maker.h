#ifndef DTRUN_MODELS_DATA_BATCH_MAKER_H_
#define DTRUN_MODELS_DATA_BATCH_MAKER_H_

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "models/data/pipeline.h"
#include "models/data/pipeline_node.h"

namespace dtrun::models {

/// The output of one pipeline step, pass by pass: a pure function of the pipeline and the pass
/// number. A stream carries example numbers and computes no values, so skipping is cheap. Not
/// thread-safe. Only the first pass allocates memory.
template <typename T>
class Stream {
 public:
  virtual ~Stream() = default;

  /// Begins pass `pass`, counted from 0. Call Start before the other functions.
  virtual void Start(uint64_t pass) = 0;
  /// Writes the next element to `out`. Returns false at the end of the pass and after it.
  virtual bool Next(T* out) = 0;
  /// Skips `count` elements, or all that are left if these are fewer. Returns the number skipped.
  virtual uint64_t Skip(uint64_t count) = 0;
};

using RefBatch = std::vector<ExampleRef>;

/// Opens the output of `node`, with only the files of `share` as source. `node` must outlive the
/// stream. No step up to `node` is a Batch.
std::unique_ptr<Stream<ExampleRef>> OpenExamples(const Node& node, const FileShare& share);

/// The same for a `node` at or behind a Batch. A full batch has `batch` examples.
std::unique_ptr<Stream<RefBatch>> OpenBatches(
    const Node& node, const FileShare& share, uint64_t batch);

/// The table of `cache`, a Cache step, for the files of `share`.
std::shared_ptr<CacheTable> CacheTableOf(const Node& cache, const FileShare& share);

/// The number of examples in each batch of an epoch. Other ranks need no more of a rank's pipeline.
/// The packed form is plain numbers, so that ranks can exchange it.
class BatchSizes {
 public:
  /// Describes the batches that `node` makes from the examples of `share`. A full batch has `batch`
  /// examples. `node` is at or behind a Batch.
  BatchSizes(const Node& node, const FileShare& share, uint64_t batch);
  /// Reads the result of `Pack`.
  explicit BatchSizes(const std::vector<uint64_t>& packed);

  std::vector<uint64_t> Pack() const { return numbers_; }

  /// Examples in a full batch.
  uint64_t full_batch() const { return numbers_[kBatch]; }
  /// Batches in an epoch, or kInfinite.
  uint64_t batches() const;
  /// Examples in batch number `batch`; 0 behind the last batch.
  uint64_t size(uint64_t batch) const;

 private:
  enum class Kind : uint64_t { kTake, kSkip, kRepeat };
  static constexpr size_t kExamples = 0, kBatch = 1, kDrops = 2, kFirstStep = 3;

  uint64_t BatchesBefore(size_t step) const;

  // [examples, full batch, 1 to drop the remainder], then kind and number of each later step.
  std::vector<uint64_t> numbers_;
};

/// Computes an example with a pipeline's functions and Caches. Not thread-safe. Allocates
/// memory in its constructor and when a Cache stores its first value.
class Evaluator {
 public:
  /// `node` must outlive the Evaluator.
  Evaluator(const Node& node, const FileShare& share);

  /// True if the pipeline has a Map.
  bool computes() const { return computes_; }
  /// Reads the share's files into memory. Throws Error.
  void LoadFiles() const;
  /// The number of the example in the source.
  uint64_t NumberOf(const ExampleRef& ref) const;
  /// Example `number` as stored in the source. Only if computes() is false.
  ExampleRow Row(uint64_t number) const { return source_.Row(number); }
  /// Writes the example's values and its label.
  void Evaluate(const ExampleRef& ref, float* values, int32_t* label);

 private:
  // The functions behind the source or behind a Cache, up to the next Cache.
  struct Stage {
    std::shared_ptr<CacheTable> table;  // null: this stage reads the source
    std::vector<const Node*> maps;
    std::vector<float> scratch[2];
  };

  void RunStage(size_t stage, const ExampleRef& ref, float* values, int32_t* label);
  void ReadInput(size_t stage, const ExampleRef& ref, float* values, int32_t* label);
  void ReadSource(const ExampleRef& ref, float* values, int32_t* label) const;

  const ExampleSource& source_;
  FileShare share_;
  std::vector<Stage> stages_;  // the first one reads the source
  bool computes_ = false;
};

/// The part of a pipeline that one rank reads.
struct ReadPlan {
  Pipeline pipeline;
  int rank = 0, ranks = 1;
  uint64_t batches = 0;  ///< in an epoch, the same on all ranks
  /// If `own_batch` is above 0, each rank has a separate stream: `files` are the files that this
  /// rank reads, `own_batch` the examples of its full batch, and `sizes` the batch sizes of all
  /// ranks. If `own_batch` is 0, every rank has the same stream of global batches and takes its
  /// part of each batch.
  FileShare files = {};
  uint64_t own_batch = 0;
  std::vector<BatchSizes> sizes = {};
  int compute_threads = 0;
};

/// The plan for a single rank. Throws Error kInvalidArgument if the pipeline has no Batch, or an
/// epoch has no batch.
ReadPlan PlanAlone(const Pipeline& pipeline);

/// Throws Error kInvalidArgument if `batches` is 0. The message describes `pipeline`.
void ExpectBatches(const Pipeline& pipeline, uint64_t batches);

/// Makes a rank's batches, one after the other. Not thread-safe.
class BatchMaker {
 public:
  BatchMaker(std::shared_ptr<const ReadPlan> plan, const Position& start);

  /// Makes the next batch. Returns false at the end of an epoch. After an exception, the next call
  /// tries the same batch again.
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
  size_t first_ref_ = 0;  // the first example of this rank's part in refs_
  Position position_;
  bool started_ = false;  // refs_stream_ is at position_
};

/// A thread that makes batches before the caller asks for them, also across the ends of epochs. The
/// first Next starts the thread, and the destructor ends it. Not thread-safe: one caller at a time.
class Prefetcher {
 public:
  /// Keeps at most `batches` batches ready, besides the caller's batch.
  Prefetcher(std::unique_ptr<BatchMaker> maker, uint64_t batches, int compute_threads);
  ~Prefetcher();

  /// Returns the next batch, valid until the next call; null at the end of an epoch. Throws the
  /// errors of BatchMaker::Make.
  const Batch* Next();
  /// Discards the ready batches and continues at `position`.
  void Seek(const Position& position);

 private:
  // The result of one call of BatchMaker::Make.
  struct Result {
    Batch batch;
    bool end_of_epoch = false;
    std::exception_ptr error;
  };

  size_t ready() const { return made_ - taken_; }
  Result& At(uint64_t number) { return ring_[number % ring_.size()]; }
  void Run();
  void MakeOne(Result& result);

  std::unique_ptr<BatchMaker> maker_;
  int compute_threads_;
  // The worker owns a result while it makes the result. Then the result waits. The caller owns it
  // from one Next to the following one. So the ring has one entry more than the ready batches.
  std::vector<Result> ring_;

  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t made_ = 0, taken_ = 0;  // counts of results; taken_ includes the caller's result
  bool held_ = false;              // the caller owns result taken_ - 1
  bool working_ = false;           // the worker is inside BatchMaker::Make
  bool paused_ = false;            // after an error, and during Seek
  bool stop_ = false;
  std::thread thread_;
};

/// The state of an Iterator. Makes the batches itself, or takes them from a Prefetcher.
class Iterator::State {
 public:
  State(const ReadPlan& plan, const Position& start);

  const Batch* Next();
  void Seek(const Position& position);
  const Position& position() const { return position_; }
  double wait_seconds() const { return std::chrono::duration<double>(wait_).count(); }

 private:
  std::unique_ptr<BatchMaker> maker_;
  std::unique_ptr<Prefetcher> prefetcher_;
  Batch batch_;  // used without a Prefetcher
  Position position_;
  bool failed_ = false;  // the last Next threw an exception
  std::chrono::steady_clock::duration wait_{};
};

}  // namespace dtrun::models

#endif  // DTRUN_MODELS_DATA_BATCH_MAKER_H_
