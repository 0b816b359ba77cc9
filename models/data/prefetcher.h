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

/// A thread that makes batches before they are asked for, across the ends of epochs. It starts with
/// the first call and ends with this object. One thread at a time may call.
class Prefetcher {
 public:
  /// At most `batches` are ready, beside the one that the caller has.
  Prefetcher(std::unique_ptr<BatchMaker> maker, uint64_t batches, int compute_threads);
  ~Prefetcher();

  /// As BatchMaker::Make; the batch is valid until the next call. Null at the end of an epoch.
  const Batch* Next();
  /// Forgets what is ready and goes on from there.
  void Seek(const Position& position);

 private:
  // What one call of BatchMaker::Make gave.
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
  // A result is the worker's while it is made, then waits, and is the caller's from its Next to the
  // next one: one more than may be ready.
  std::vector<Result> ring_;

  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t made_ = 0, taken_ = 0;  // results, the one that the caller has included
  bool held_ = false;              // the caller has result taken_ - 1
  bool working_ = false;           // the worker is inside Make
  bool paused_ = false;            // after an error, and during Seek
  bool stop_ = false;
  std::thread thread_;
};

/// Makes batches itself or has them made by a Prefetcher.
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
  Batch batch_;  // without a Prefetcher
  Position position_;
  bool failed_ = false;  // the last Next threw
  std::chrono::steady_clock::duration wait_{};
};

}  // namespace dtrun::models

#endif  // DTRUN_MODELS_DATA_PREFETCHER_H_
