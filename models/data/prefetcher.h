#ifndef DTRUN_MODELS_DATA_PREFETCHER_H_
#define DTRUN_MODELS_DATA_PREFETCHER_H_

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "models/data/batch_maker.h"
#include "models/data/pipeline.h"

namespace dtrun::models {

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

#endif  // DTRUN_MODELS_DATA_PREFETCHER_H_
