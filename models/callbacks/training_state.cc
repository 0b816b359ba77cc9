#include "models/callbacks/training_state.h"

#include <dtrun/objects.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <sstream>

#include "models/callbacks/print.h"
#include "models/text.h"

namespace dtrun::models {
namespace {

void Append(const std::vector<NamedTensor>& from, std::vector<NamedTensor>& to) {
  to.insert(to.end(), from.begin(), from.end());
}

const std::string& Remark(const Metadata& metadata, const std::string& key) {
  const auto found = metadata.find(key);
  if (found != metadata.end()) return found->second;
  throw Error(
      ErrorCode::kInvalidArgument,
      Text("the checkpoint does not say '", key, "', expected one that a training has saved"));
}

double NumberIn(const Metadata& metadata, const std::string& key) {
  const std::string& text = Remark(metadata, key);
  char* end = nullptr;
  const double number = std::strtod(text.c_str(), &end);
  if (!text.empty() && *end == '\0') return number;
  throw Error(
      ErrorCode::kInvalidArgument,
      Text("the checkpoint says '", key, "' is '", text, "', expected a number"));
}

uint64_t CountIn(const Metadata& metadata, const std::string& key) {
  const double number = NumberIn(metadata, key);
  if (number >= 0 && number < 0x1p53 && number == std::floor(number))
    return static_cast<uint64_t>(number);
  throw Error(
      ErrorCode::kInvalidArgument,
      Text("the checkpoint says '", key, "' is ", number, ", expected a count"));
}

// Old checkpoints, and those of trainings that scale nothing, have none.
constexpr char kLossScale[] = "loss_scale";
constexpr char kGoodSteps[] = "loss_scale_good_steps";
constexpr char kSkippedSteps[] = "loss_scale_skipped_steps";

LossScale LossScaleIn(const Metadata& metadata) {
  const double scale = NumberIn(metadata, kLossScale);
  if (scale >= 1 && std::isfinite(scale))
    return {scale, CountIn(metadata, kGoodSteps), CountIn(metadata, kSkippedSteps)};
  throw Error(
      ErrorCode::kInvalidArgument, Text(
                                       "the checkpoint says '", kLossScale, "' is ", scale,
                                       ", expected a finite number, 1 or more"));
}

std::vector<double> SumsOf(Run& run) {
  std::vector<double> sums;
  for (Metric* metric : run.metrics()) {
    const std::span<double> state = metric->state();
    sums.insert(sums.end(), state.begin(), state.end());
  }
  return sums;
}

// One line per rank, each number with all its bits.
std::string SumsOfAllRanks(Run& run) {
  std::string text;
  for (const std::vector<double>& of_rank : AllGatherObjects(run.world(), SumsOf(run))) {
    for (const double sum : of_rank) text += Format("%a ", sum);
    text += "\n";
  }
  return text;
}

std::vector<std::vector<double>> ParseSums(const std::string& text, size_t expected) {
  std::vector<std::vector<double>> of_ranks;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    of_ranks.emplace_back();
    std::istringstream words(line);
    for (std::string word; words >> word;)
      of_ranks.back().push_back(std::strtod(word.c_str(), nullptr));
    if (of_ranks.back().size() == expected) continue;
    throw Error(
        ErrorCode::kInvalidArgument,
        Text(
            "the checkpoint has ", of_ranks.back().size(), " sums of metrics, expected ", expected,
            " as this run's metrics have"));
  }
  return of_ranks;
}

void RestoreSums(Run& run, const std::string& text) {
  std::vector<double> mine(SumsOf(run).size());
  const std::vector<std::vector<double>> saved = ParseSums(text, mine.size());
  const auto rank = static_cast<size_t>(run.world().rank());
  if (saved.size() == static_cast<size_t>(run.world().size())) {
    mine = saved[rank];
  } else if (rank == 0) {
    for (const std::vector<double>& of_rank : saved)
      std::transform(mine.begin(), mine.end(), of_rank.begin(), mine.begin(), std::plus<>());
  }
  const double* next = mine.data();
  for (Metric* metric : run.metrics()) {
    for (double& sum : metric->state()) sum = *next++;
  }
}

}  // namespace

std::vector<NamedTensor> WeightsOf(Run& run) {
  std::vector<NamedTensor> tensors = TensorsOf(run.model().parameters());
  Append(TensorsOf(run.model().buffers()), tensors);
  return tensors;
}

std::vector<NamedTensor> StateOf(Run& run) {
  std::vector<NamedTensor> tensors = WeightsOf(run);
  Append(TensorsOf(run.replica().distributed_optimizer().BorrowState(), "optimizer/"), tensors);
  return tensors;
}

std::vector<NamedTensor> StateToLoad(Run& run) {
  StrategyOptimizer& optimizer = run.replica().distributed_optimizer();
  std::vector<NamedTensor> tensors = TensorsOf(optimizer.BorrowValues());
  Append(TensorsOf(run.model().buffers()), tensors);
  Append(TensorsOf(optimizer.BorrowState(), "optimizer/"), tensors);
  return tensors;
}

void TakeState(Run& run) {
  run.replica().distributed_optimizer().ReturnValues();
  run.replica().distributed_optimizer().ReturnState();
}

Metadata RemarksOf(Run& run) {
  const TrainingPosition& at = run.position;
  Metadata remarks = {
      {"epoch", Text(at.epoch)},
      {"batch", Text(at.batch)},
      {"step", Text(at.step)},
      {"steps_per_epoch", Text(run.steps)},
      {"learning_rate", Format("%.17g", run.learning_rate())},
      {"ranks", Text(run.world().size())}};
  if (run.loss_scale) {
    remarks[kLossScale] = Format("%.17g", run.loss_scale->scale);
    remarks[kGoodSteps] = Text(run.loss_scale->good_steps);
    remarks[kSkippedSteps] = Text(run.loss_scale->skipped_steps);
  }
  if (at.batch > 0) {
    remarks["metric_sums"] = SumsOfAllRanks(run);
    remarks["epoch_examples"] = Text(run.epoch_examples);
  }
  return remarks;
}

void ResumeFrom(Run& run, const Metadata& metadata) {
  TrainingPosition at{
      CountIn(metadata, "epoch"), CountIn(metadata, "batch"), CountIn(metadata, "step")};
  if (CountIn(metadata, "steps_per_epoch") != run.steps) at.batch = 0;
  if (at.batch > 0) {
    RestoreSums(run, Remark(metadata, "metric_sums"));
    run.epoch_examples = CountIn(metadata, "epoch_examples");
  }
  run.set_learning_rate(NumberIn(metadata, "learning_rate"));
  if (metadata.count(kLossScale) > 0) run.loss_scale = LossScaleIn(metadata);
  run.Resume(at);
}

}  // namespace dtrun::models
