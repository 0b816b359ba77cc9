#ifndef DTRUN_DETAIL_SHARED_STEPS_H_
#define DTRUN_DETAIL_SHARED_STEPS_H_

#include <dtrun/dataset.h>
#include <dtrun/detail/parameter_client.h>
#include <dtrun/error.h>
#include <dtrun/types.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

namespace dtrun {
namespace detail {

/// The connection of a worker to its servers, which its data sets and its optimizer share.
struct SharedSteps {
  std::optional<ParameterWorker> worker;  ///< made with the optimizer
  uint64_t next_step = 0;                 ///< the number of the next step of this worker
  uint64_t steps_made = 0;                ///< by this worker
  uint64_t pulls = 0;
  uint64_t end = 0;  ///< steps below it belong to epochs that this worker has begun

  ParameterWorker& Connected() {
    if (!worker)
      throw Error(
          ErrorCode::kInvalidArgument,
          "strategy parameter_server: a batch was requested before there are variables; make the "
          "optimizer with Scope().Distribute first");
    return *worker;
  }
  void Pull() {
    Connected().Pull();
    ++pulls;
  }
};

/// The batches of a worker. The workers share the batches of each epoch: a batch is a step, which
/// the first server hands out. Every worker iterates over the same batches and gets its own ones.
///
/// The steps of all epochs of all data sets have one order: an epoch of n batches has n numbers,
/// behind those of the epochs that were begun before it.
class SharedBatches : public DistributedDataset {
 public:
  SharedBatches(std::unique_ptr<DistributedDataset> data, std::shared_ptr<SharedSteps> steps)
      : data_(std::move(data)), steps_(std::move(steps)) {}

  uint64_t batches_per_epoch() const override { return 0; }  // other workers get some of them
  uint64_t largest_batch() const override { return data_->largest_batch(); }

  /// The first epoch of the first data set has the steps from 0. So a training that continues from
  /// a checkpoint begins with the same batch.
  void StartEpoch(uint64_t epoch, uint64_t first_batch = 0) override {
    if (first_batch > 0)
      throw Error(
          ErrorCode::kUnavailable,
          "strategy parameter_server: an epoch begins at batch " + std::to_string(first_batch) +
              "; expected 0: the servers continue a training, from their own checkpoints");
    const uint64_t batches = data_->batches_per_epoch();
    const bool again = begun_ && epoch < next_epoch_;
    if ((!begun_ || again) && steps_->end == UINT64_MAX)
      throw Error(
          ErrorCode::kUnavailable,
          "strategy parameter_server: found an epoch behind an epoch without an end; expected no "
          "data set behind a data set that repeats for ever");
    if (!begun_ || again) before_ = steps_->end - (again ? epoch * batches : 0);
    begun_ = true;
    next_epoch_ = epoch + 1;
    epoch_ = epoch;
    first_ = before_ + epoch * batches;
    end_ = batches == 0 ? UINT64_MAX : first_ + batches;
    steps_->end = std::max(steps_->end, end_);
    at_ = UINT64_MAX;
    handed_out_ = 0;
    steps_before_ = steps_->steps_made;
  }

  bool Next(DistributedBatch& batch) override {
    ParameterWorker& worker = steps_->Connected();
    const std::optional<uint64_t> step = worker.NextStepIn(first_, end_);
    if (!step) {
      CheckStepped();
      return false;
    }
    ++handed_out_;
    steps_->next_step = *step;
    steps_->Pull();
    const uint64_t wanted = *step - first_;
    if (at_ > wanted) data_->StartEpoch(epoch_, at_ = wanted);
    for (; at_ <= wanted; ++at_)  // the batches in between belong to other workers
      if (!data_->Next(batch)) return false;
    return true;
  }

 private:
  // A worker that only evaluates would see a part of the data.
  void CheckStepped() const {
    if (handed_out_ == 0 || steps_->steps_made > steps_before_) return;
    throw Error(
        ErrorCode::kInvalidArgument,
        "strategy parameter_server: no step followed the batches of an epoch; distribute data for "
        "an evaluation with DistributeEvaluationDataset");
  }

  std::unique_ptr<DistributedDataset> data_;
  std::shared_ptr<SharedSteps> steps_;
  bool begun_ = false;
  uint64_t before_ = 0;      // the step of batch 0 of epoch 0
  uint64_t next_epoch_ = 0;  // behind the last epoch that was begun
  uint64_t epoch_ = 0;       // the current one, with the steps [first_, end_)
  uint64_t first_ = 0, end_ = 0;
  uint64_t at_ = UINT64_MAX;  // the next batch of data_
  uint64_t handed_out_ = 0, steps_before_ = 0;
};

/// All batches of an evaluation, on every worker, with the servers' values at its start.
class EvaluationBatches : public DistributedDataset {
 public:
  EvaluationBatches(std::unique_ptr<DistributedDataset> data, std::shared_ptr<SharedSteps> steps)
      : data_(std::move(data)), steps_(std::move(steps)) {}

  uint64_t batches_per_epoch() const override { return data_->batches_per_epoch(); }
  uint64_t largest_batch() const override { return data_->largest_batch(); }
  void StartEpoch(uint64_t epoch, uint64_t first_batch = 0) override {
    steps_->Pull();
    data_->StartEpoch(epoch, first_batch);
  }
  bool Next(DistributedBatch& batch) override { return data_->Next(batch); }

 private:
  std::unique_ptr<DistributedDataset> data_;
  std::shared_ptr<SharedSteps> steps_;
};

}  // namespace detail
}  // namespace dtrun

#endif
