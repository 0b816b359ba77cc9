#include "models/train/trainer.h"

#include <dtrun/objects.h>

#include <cmath>
#include <set>

#include "models/message_text.h"
#include "models/train/agreement.h"
#include "models/train/steps.h"

namespace dtrun::models {

// After every step, the ranks settle its outcome with one all-reduce of 8 bytes. Until then, a rank
// that has failed still takes part in the step, so that no other rank waits for it.

Trainer::Trainer(Replica& replica, const Loss& loss, MetricList metrics)
    : replica_(replica),
      loss_(loss),
      metrics_(std::move(metrics)),
      all_metrics_{&mean_loss_},
      agreement_(replica.world()) {
  loss.CheckLastLayer(LastLayerOf(replica.model().description()));
  std::set<std::string> names = {mean_loss_.name()};
  for (const std::unique_ptr<Metric>& metric : metrics_) {
    all_metrics_.push_back(metric.get());
    if (names.insert(metric->name()).second) continue;
    throw Error(
        ErrorCode::kInvalidArgument,
        Text("two metrics are called '", metric->name(), "', expected different names"));
  }
}

template <typename Turn>
void Trainer::Call(const CallbackList& callbacks, const Turn& turn) {
  for (const std::unique_ptr<Callback>& callback : callbacks)
    agreement_.Run(callback->name(), [&] { turn(*callback); });
}

Logs Trainer::LogsOf(const std::string& prefix) const {
  Logs logs;
  for (const Metric* metric : all_metrics_) logs[prefix + metric->name()] = metric->Result();
  return logs;
}

void Trainer::ResetMetrics() {
  for (Metric* metric : all_metrics_) metric->Reset();
}

History Trainer::Fit(BatchSource& data, const FitOptions& options, const CallbackList& callbacks) {
  Run run(replica_, all_metrics_, [this] { agreement_.Settle(); });
  run.position = {options.initial_epoch, 0, replica_.step()};
  run.epochs = options.epochs;
  run.steps = options.steps_per_epoch > 0 ? options.steps_per_epoch : data.steps_per_epoch();
  History history;
  agreement_.Watch(notice_);
  ResetMetrics();
  Call(callbacks, [&](Callback& callback) { callback.OnTrainBegin(run); });
  agreement_.Settle();
  try {
    RunEpochs(run, data, options, callbacks, history);
  } catch (const Error& error) {
    if (options.kept != nullptr && error.code() == ErrorCode::kPeerLost)
      options.kept->Keep(run, history);
    throw;
  }
  return history;
}

void Trainer::RunEpochs(
    Run& run, BatchSource& data, const FitOptions& options, const CallbackList& callbacks,
    History& history) {
  if (options.kept != nullptr) options.kept->Restore(run, history);
  if (notice_ != nullptr) agreement_.Settle();
  if (agreement_.preempted()) EndForLater(run, callbacks);
  while (run.position.epoch < options.epochs && !run.stop() &&
         (options.max_steps == 0 || run.position.step < options.max_steps))
    RunEpoch(run, data, options, callbacks, history);
  const Logs last = history.logs.empty() ? Logs{} : history.logs.back();
  Call(callbacks, [&](Callback& callback) { callback.OnTrainEnd(run, last); });
  agreement_.Settle();
  history.not_written = run.not_written();
  agreement_.Watch(nullptr);
}

void Trainer::RunEpoch(
    Run& run, BatchSource& data, const FitOptions& options, const CallbackList& callbacks,
    History& history) {
  if (run.position.batch == 0) {
    ResetMetrics();
    run.epoch_examples = 0;
  }
  agreement_.Run("", [&] { data.StartEpoch(run.position.epoch, run.position.batch); });
  Call(callbacks, [&](Callback& callback) { callback.OnEpochBegin(run); });
  agreement_.Settle();
  const auto has_steps_left = [&] {
    return (options.steps_per_epoch == 0 || run.position.batch < options.steps_per_epoch) &&
           (options.max_steps == 0 || run.position.step < options.max_steps);
  };
  while (!run.stop() && has_steps_left() && RunBatch(run, data, callbacks, options.kept, history))
    continue;

  const std::vector<double> sums = SumsOf(all_metrics_);
  run.cut_short = run.steps > 0 && run.position.batch < run.steps;
  const bool ends_here =
      run.stop() || (options.max_steps > 0 && run.position.step >= options.max_steps);
  if (run.cut_short && ends_here)
    Call(callbacks, [&](Callback& callback) { callback.OnEpochCut(run); });
  SumOverRanks(run.world(), all_metrics_);
  Logs logs = LogsOf("");
  logs["learning_rate"] = run.learning_rate();
  const uint64_t epoch = run.position.epoch;
  if (options.validation_data != nullptr) {
    run.validating = true;
    const Logs validation = EvaluateIn(run, *options.validation_data, callbacks);
    if (agreement_.preempted()) {
      SetSums(all_metrics_, sums);
      EndForLater(run, callbacks);
    }
    for (const auto& [name, value] : validation) logs["val_" + name] = value;
    run.validating = false;
  }
  ++run.position.epoch;
  run.position.batch = 0;
  Call(callbacks, [&](Callback& callback) { callback.OnEpochEnd(run, logs); });
  if (run.stop()) agreement_.RequestStop();
  if (agreement_.Settle()) run.StopTraining();
  history.epochs.push_back(epoch);
  history.logs.push_back(logs);
  if (options.kept == nullptr) return;
  options.kept->EndStep(run);
  options.kept->Store(run, history);
}

// Returns false at the end of the epoch's data.
bool Trainer::RunBatch(
    Run& run, BatchSource& data, const CallbackList& callbacks, KeptTraining* kept,
    const History& history) {
  const uint64_t steps = data.steps_per_epoch();
  if (steps > 0 && run.position.batch >= steps) return false;
  ReplicaBatch batch;
  bool found = true;
  agreement_.Run("", [&] { found = data.Next(batch); });
  if (!found) return false;
  run.position.step = replica_.step();
  run.global_batch = batch.global_batch;
  run.examples = batch.examples;
  run.first_position = batch.first_position;
  run.example_numbers = batch.example_numbers;
  Call(callbacks, [&](Callback& callback) { callback.OnBatchBegin(run); });
  agreement_.Run("", [&] {
    run.batch_loss = ComputeGradients(replica_, batch, loss_, all_metrics_);
    CheckLoss(run, run.batch_loss);
  });
  if (kept != nullptr) kept->BeginStep(run);
  if (agreement_.failed())
    replica_.Abandon();
  else
    replica_.Apply();
  ++run.position.batch;
  ++run.position.step;
  run.epoch_examples += batch.global_batch;
  if (kept != nullptr) kept->EndStep(run);
  if (kept != nullptr && !agreement_.failed()) kept->Store(run, history);
  const Logs logs = LogsOf("");
  Call(callbacks, [&](Callback& callback) { callback.OnBatchEnd(run, logs); });
  run.example_numbers = {};  // the next batch takes their memory
  if (run.stop()) agreement_.RequestStop();
  if (agreement_.Settle()) run.StopTraining();
  if (agreement_.preempted()) EndForLater(run, callbacks);
  return true;
}

void Trainer::EndForLater(Run& run, const CallbackList& callbacks) {
  agreement_.Watch(nullptr);
  std::string folder;
  Call(callbacks, [&](Callback& callback) {
    if (const std::string saved = callback.OnPreemption(run); !saved.empty()) folder = saved;
  });
  agreement_.Settle();
  const TrainingPosition& at = run.position;
  const std::string why = Text(
      "the job is going to end; ended after step ", at.step, ", in epoch ", at.epoch + 1,
      ", batch ", at.batch);
  if (folder.empty())
    throw AgreedError(ErrorCode::kSystem, kResultNotWritten, why + "; the state was not saved");
  throw AgreedError(
      ErrorCode::kUnavailable, kSavedForLater, Text(why, "; the state is saved in ", folder));
}

void Trainer::CheckLoss(const Run& run, double loss) {
  if (std::isfinite(loss)) return;
  agreement_.Fail(
      {ErrorCode::kInvalidArgument, kDiverged,
       Text(
           "the loss is ", loss, " in step ", run.position.step + 1, " (epoch ",
           run.position.epoch + 1, ", batch ", run.position.batch + 1,
           "): training has diverged; a lower learning rate or a warm-up may help")});
}

Logs Trainer::Evaluate(BatchSource& data, const CallbackList& callbacks) {
  Run run(replica_, all_metrics_, [this] { agreement_.Settle(); });
  run.steps = data.steps_per_epoch();
  agreement_.Watch(notice_);
  Logs logs = EvaluateIn(run, data, callbacks);
  agreement_.Watch(nullptr);
  if (agreement_.preempted())
    throw AgreedError(
        ErrorCode::kUnavailable, kSavedForLater,
        "the job is going to end; ended in an evaluation after the training");
  return logs;
}

// Returns no logs if the job is going to end.

Logs Trainer::EvaluateIn(Run& run, BatchSource& data, const CallbackList& callbacks) {
  ResetMetrics();
  replica_.AverageBuffers();
  Call(callbacks, [&](Callback& callback) { callback.OnTestBegin(run); });
  agreement_.Run("", [&] { data.StartEpoch(0); });
  bool found = true;
  while (found) {
    found = false;
    agreement_.Run("", [&] {
      ReplicaBatch batch;
      if (!data.Next(batch)) return;
      Call(callbacks, [&](Callback& callback) { callback.OnTestBatchBegin(run); });
      TestStep(replica_, batch, loss_, all_metrics_);
      Call(callbacks, [&](Callback& callback) { callback.OnTestBatchEnd(run, LogsOf("")); });
      found = true;
    });
    if (notice_ != nullptr) agreement_.Settle();
    if (agreement_.preempted()) return {};
  }
  agreement_.Settle();
  if (agreement_.preempted()) return {};
  SumOverRanks(run.world(), all_metrics_);
  const Logs logs = LogsOf("");
  Call(callbacks, [&](Callback& callback) { callback.OnTestEnd(run, logs); });
  agreement_.Settle();
  return logs;
}

std::vector<float> Trainer::Predict(
    BatchSource& data, PredictTo to, const CallbackList& callbacks) {
  Run run(replica_, all_metrics_, [this] { agreement_.Settle(); });
  run.steps = data.steps_per_epoch();
  replica_.AverageBuffers();
  Call(callbacks, [&](Callback& callback) { callback.OnPredictBegin(run); });
  OutputShares mine;
  agreement_.Run("", [&] {
    data.StartEpoch(0);
    for (const ReplicaBatch& batch : RestOf(data)) {
      Call(callbacks, [&](Callback& callback) { callback.OnPredictBatchBegin(run); });
      PredictStep(replica_, batch, mine.outputs);
      mine.counts.push_back(batch.examples * replica_.model().classes());
      Call(callbacks, [&](Callback& callback) { callback.OnPredictBatchEnd(run); });
    }
  });
  agreement_.Settle();
  std::vector<float> outputs = Gather(run.world(), std::move(mine), to == PredictTo::kAllRanks);
  Call(callbacks, [&](Callback& callback) { callback.OnPredictEnd(run); });
  agreement_.Settle();
  return outputs;
}

namespace {

// Reorders the outputs from rank by rank to batch by batch.
std::vector<float> InOrderOfData(
    const std::vector<float>& by_rank, const std::vector<std::vector<uint64_t>>& counts) {
  std::vector<size_t> next(counts.size());
  for (size_t rank = 1; rank < counts.size(); ++rank) {
    next[rank] = next[rank - 1];
    for (const uint64_t count : counts[rank - 1]) next[rank] += count;
  }
  std::vector<float> ordered;
  ordered.reserve(by_rank.size());
  for (size_t batch = 0; batch < counts[0].size(); ++batch) {
    for (size_t rank = 0; rank < counts.size(); ++rank) {
      const auto begin = by_rank.begin() + static_cast<ptrdiff_t>(next[rank]);
      ordered.insert(ordered.end(), begin, begin + static_cast<ptrdiff_t>(counts[rank][batch]));
      next[rank] += counts[rank][batch];
    }
  }
  return ordered;
}

}  // namespace

std::vector<float> Gather(Communicator& world, OutputShares mine, bool on_all_ranks) {
  const std::vector<std::vector<uint64_t>> counts = AllGatherObjects(world, mine.counts);
  Counts totals;
  for (const std::vector<uint64_t>& of_rank : counts) totals.push_back(detail::Sum(of_rank));
  const bool receives = on_all_ranks || world.rank() == 0;
  std::vector<float> by_rank(receives ? detail::Sum(totals) : 0);
  const Buffer input(mine.outputs.data(), mine.outputs.size());
  const Buffer output(by_rank.data(), by_rank.size());
  if (on_all_ranks)
    world.AllGather(input, output, totals);
  else
    world.Gather(input, output, 0, totals);
  return receives ? InOrderOfData(by_rank, counts) : std::vector<float>{};
}

}  // namespace dtrun::models
