#include "models/train/trainer.h"

#include <algorithm>
#include <chrono>

#include "models/data/sampling.h"
#include "models/train/step.h"

namespace dtrun::models {
namespace {

class Stopwatch {
 public:
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace

// The losses are divided by the global batch already, so the gradients are summed.
Trainer::Trainer(
    Communicator& world, Sequential& model, RateOptimizer& optimizer, const Dataset& data,
    const TrainerOptions& options)
    : world_(world),
      model_(model),
      inner_(optimizer),
      optimizer_(world, optimizer, {.op = ReduceOp::kSum}),
      data_(data),
      options_(options) {
  BroadcastParameters(world, model.parameters());
  BroadcastOptimizerState(world, optimizer);
}

EpochResult Trainer::RunEpoch(const OnStep& on_step) {
  const std::vector<uint32_t> order = EpochOrder(options_.seed, epoch_, data_.train.count);
  StepReport report;
  report.steps = StepsOfThisEpoch();
  std::vector<double> loss_sums;
  world_.Barrier();
  const double exposed_before = optimizer_.statistics().total.exposed_s;
  const Stopwatch watch;
  while (report.step < report.steps) {
    const Tally tally = Step(report.step, order);
    loss_sums.push_back(tally.loss);
    report.share += tally;
    report.seconds = watch.seconds();
    ++report.step;
    on_step(report);
  }
  const double seconds = watch.seconds();
  double exposed = optimizer_.statistics().total.exposed_s - exposed_before;
  world_.AllReduce(Buffer(&exposed, 1), ReduceOp::kAverage);
  AppendStepLosses(std::move(loss_sums));
  ++epoch_;

  const Tally trained = SumOverRanks(report.share), tested = EvaluateTestSet();
  return {
      .loss = trained.mean_loss(),
      .train_accuracy = trained.accuracy(),
      .test_loss = tested.mean_loss(),
      .test_accuracy = tested.accuracy(),
      .seconds = seconds,
      .images_per_s = static_cast<double>(trained.examples) / seconds,
      .exposed_share = exposed / seconds};
}

Tally Trainer::Step(uint64_t step_of_epoch, const std::vector<uint32_t>& order) {
  const Range batch = GlobalBatch(step_of_epoch, data_.train.count, options_.global_batch);
  const Range mine = PartOf(batch, world_.rank(), world_.size());
  const Share share{
      std::span(order).subspan(mine.begin, mine.size()),
      static_cast<uint32_t>(mine.begin - batch.begin), batch.size(), step_};
  const Tally tally = ComputeGradients(model_, data_.train, share, [&](size_t parameter) {
    if (options_.overlap) optimizer_.MarkReady(parameter);
  });
  if (options_.learning_rate) inner_.set_learning_rate(options_.learning_rate(step_));
  optimizer_.Step();
  ++step_;
  return tally;
}

bool Trainer::finished() const { return options_.max_steps > 0 && step_ >= options_.max_steps; }

uint64_t Trainer::StepsOfThisEpoch() const {
  uint64_t steps = BatchesPerEpoch(data_.train.count, options_.global_batch);
  if (options_.steps_per_epoch > 0) steps = std::min(steps, options_.steps_per_epoch);
  if (options_.max_steps > 0) steps = std::min(steps, options_.max_steps - step_);
  return steps;
}

Tally Trainer::EvaluateTestSet() {
  const Range mine = PartOf({0, data_.test.count}, world_.rank(), world_.size());
  return SumOverRanks(Evaluate(model_, data_.test, mine));
}

// As doubles: counts stay exact below 2^53.
Tally Trainer::SumOverRanks(const Tally& mine) {
  double sums[] = {
      mine.loss, static_cast<double>(mine.correct), static_cast<double>(mine.examples)};
  world_.AllReduce(Buffer(sums, 3));
  return {sums[0], static_cast<uint64_t>(sums[1]), static_cast<uint64_t>(sums[2])};
}

void Trainer::AppendStepLosses(std::vector<double> loss_sums) {
  world_.AllReduce(Buffer(loss_sums.data(), loss_sums.size()));
  for (uint64_t step = 0; step < loss_sums.size(); ++step) {
    const Range batch = GlobalBatch(step, data_.train.count, options_.global_batch);
    step_losses_.push_back(loss_sums[step] / static_cast<double>(batch.size()));
  }
}

}  // namespace dtrun::models
