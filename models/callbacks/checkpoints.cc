#include "models/callbacks/checkpoints.h"

#include <dtrun/objects.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <sstream>
#include <system_error>
#include <utility>

#include "models/callbacks/log_values.h"
#include "models/message_text.h"
#include "models/train/agreement.h"

namespace dtrun::models {
namespace {

// A CheckpointManager throws the same error on all ranks. Open throws it as an AgreedError.
std::unique_ptr<CheckpointManager> Open(
    Run& run, const std::string& folder, CheckpointOptions options) {
  options.discard = run.world().rank() == 0 && !run.is_rank_0();  // a worker beside the chief
  try {
    return std::make_unique<CheckpointManager>(run.world(), folder, options);
  } catch (const Error& error) {
    throw AgreedError(error.code(), kResultNotWritten, error.what());
  }
}

// A full disk does not end training.
void Write(Run& run, const Print& print, const std::function<void()>& write) {
  try {
    write();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kSystem) throw;
    const std::string line = Text("a checkpoint was not saved: ", error.what());
    run.NotWritten(line);
    if (print && run.is_rank_0()) print(line);
  }
}

// `tensors_of` is called after the ranks have averaged the buffers.
void Save(
    Run& run, const Print& print, CheckpointManager& manager, bool asynchronous,
    const SaveOptions& options, std::vector<NamedTensor> (*tensors_of)(Run&)) {
  run.replica().AverageBuffers();
  const std::vector<NamedTensor> tensors = tensors_of(run);
  if (asynchronous) Write(run, print, [&] { manager.Wait(); });
  Write(run, print, [&] {
    if (asynchronous)
      manager.StartSave(options, tensors);
    else
      manager.Save(options, tensors);
  });
}

bool IsDue(uint64_t done, uint64_t every) { return every > 0 && done % every == 0; }

}  // namespace

ModelCheckpoint::ModelCheckpoint(ModelCheckpointOptions options)
    : options_(std::move(options)),
      monitor_(options_.monitor, options_.mode),
      best_(monitor_.worst()) {
  if (std::filesystem::path(options_.path).filename().empty()) {
    throw Error(
        ErrorCode::kInvalidArgument, Text(
                                         "ModelCheckpoint: the path '", options_.path,
                                         "', expected a folder and a name like ckpt_{epoch}"));
  }
  if (options_.every_epochs == 0) {
    throw Error(
        ErrorCode::kInvalidArgument, "ModelCheckpoint: every_epochs is 0, expected at least 1");
  }
}

void ModelCheckpoint::OnTrainBegin(Run& run) {
  run.Settle();
  const std::filesystem::path folder = std::filesystem::path(options_.path).parent_path();
  best_ = monitor_.worst();
  manager_ = Open(
      run, folder.empty() ? "." : folder.string(),
      {.max_to_keep = options_.max_to_keep, .sharded = options_.sharded});
}

void ModelCheckpoint::OnBatchEnd(Run& run, const Logs& logs) {
  if (IsDue(run.position.step, options_.every_batches)) Consider(run, logs, run.position.epoch + 1);
}

void ModelCheckpoint::OnEpochEnd(Run& run, Logs& logs) {
  if (options_.every_batches == 0 && IsDue(run.position.epoch, options_.every_epochs))
    Consider(run, logs, run.position.epoch);
}

// Inside an epoch, each rank has different logs. Rank 0's logs decide and give the name.
void ModelCheckpoint::Consider(Run& run, const Logs& logs, uint64_t epoch) {
  run.Settle();
  SaveOptions save;
  save.step = run.position.step;
  save.metadata = RemarksOf(run);
  double value = 0;
  if (options_.save_best_only) {
    value = monitor_.ValueIn(logs);
    run.world().Broadcast(Buffer(&value, 1), 0);
    if (!monitor_.IsBetter(value, best_)) return;
    best_ = value;
    if (std::isfinite(value)) save.value = value;
  }
  Logs numbers = logs;
  numbers["epoch"] = static_cast<double>(epoch);
  numbers["batch"] = static_cast<double>(run.position.batch);
  numbers["step"] = static_cast<double>(run.position.step);
  const std::string pattern = std::filesystem::path(options_.path).filename();
  save.name = BroadcastBytes(run.world(), FillIn(pattern, numbers));
  Save(
      run, options_.print, *manager_, options_.asynchronous, save,
      options_.save_weights_only ? WeightsOf : StateOf);
}

void ModelCheckpoint::OnTrainEnd(Run& run, const Logs&) {
  run.Settle();
  Write(run, options_.print, [&] { manager_->Wait(); });
  manager_.reset();
}

BackupAndRestore::BackupAndRestore(BackupAndRestoreOptions options) : options_(std::move(options)) {
  if (options_.folder.empty())
    throw Error(ErrorCode::kInvalidArgument, "BackupAndRestore: folder is '', expected a folder");
}

void BackupAndRestore::OnTrainBegin(Run& run) {
  run.Settle();
  manager_ = Open(
      run, options_.folder, {.max_to_keep = options_.max_to_keep, .sharded = options_.sharded});
  if (options_.restore) Restore(run);
}

void BackupAndRestore::Restore(Run& run) {
  Loaded loaded;
  try {
    loaded = manager_->Load(StateToLoad(run));
    TakeState(run);
    if (!loaded.checkpoint) return;
    ResumeFrom(run, loaded.checkpoint->metadata);
  } catch (const Error& error) {
    // After these errors, the ranks cannot agree on the state of the checkpoint.
    if (error.code() == ErrorCode::kPeerLost || error.code() == ErrorCode::kTimeout) throw;
    throw AgreedError(error.code(), kDataUnusable, error.what());
  }
  if (!options_.print || !run.is_rank_0()) return;
  const TrainingPosition& at = run.position;
  options_.print(
      at.epoch >= run.epochs
          ? Text(
                "Resuming from ", loaded.checkpoint->path, ": its ", at.epoch, " epochs are ",
                at.epoch == run.epochs ? "all that is wanted" : "more than wanted",
                ", nothing is left to train")
          : Text(
                "Resuming from ", loaded.checkpoint->path, " in epoch ", at.epoch + 1, ", batch ",
                at.batch + 1));
}

void BackupAndRestore::SaveState(Run& run, bool asynchronous) {
  run.Settle();
  Save(
      run, options_.print, *manager_, asynchronous,
      {.step = run.position.step, .metadata = RemarksOf(run)}, StateOf);
}

void BackupAndRestore::OnBatchEnd(Run& run, const Logs&) {
  if (!IsDue(run.position.step, options_.every_batches)) return;
  SaveState(run, options_.asynchronous);
}

// Without this backup, a process that is ended in the evaluation after the training would lose the
// steps since the last one.
void BackupAndRestore::OnEpochCut(Run& run) {
  if (IsDue(run.position.step, options_.every_batches)) return;  // OnBatchEnd has saved
  SaveState(run, options_.asynchronous);
}

// Also runs if the last batch was just backed up: only this backup says that the epoch has ended.
// OnEpochCut has saved an epoch that was cut short.
void BackupAndRestore::OnEpochEnd(Run& run, Logs&) {
  if (run.cut_short) return;
  SaveState(run, options_.asynchronous);
}

// Waits for the file: the process ends soon.
std::string BackupAndRestore::OnPreemption(Run& run) {
  Write(run, options_.print, [&] { manager_->Wait(); });
  const size_t failures = run.not_written().size();
  SaveState(run, /*asynchronous=*/false);
  return run.not_written().size() == failures ? options_.folder : "";
}

void BackupAndRestore::OnTrainEnd(Run& run, const Logs&) {
  run.Settle();
  Write(run, options_.print, [&] { manager_->Wait(); });
  const std::vector<Checkpoint> backups =
      options_.delete_at_end ? manager_->List() : std::vector<Checkpoint>{};
  manager_.reset();
  if (run.is_rank_0()) Remove(backups);
}

// Removes only the backups and links of this callback. The folder may hold other files.
void BackupAndRestore::Remove(const std::vector<Checkpoint>& backups) const {
  if (backups.empty()) return;
  const std::filesystem::path folder = options_.folder;
  std::error_code ignored;
  for (const Checkpoint& backup : backups) std::filesystem::remove_all(backup.path, ignored);
  for (const char* name : {"latest", "best"}) std::filesystem::remove(folder / name, ignored);
  std::filesystem::remove(folder, ignored);
}

namespace {

void Append(const std::vector<NamedTensor>& from, std::vector<NamedTensor>& to) {
  to.insert(to.end(), from.begin(), from.end());
}

const std::string& Remark(const Metadata& metadata, const std::string& key) {
  const auto found = metadata.find(key);
  if (found != metadata.end()) return found->second;
  throw Error(
      ErrorCode::kInvalidArgument,
      Text("the checkpoint has no metadata '", key, "', expected a checkpoint of a training"));
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

// Old checkpoints, and those of trainings without loss scaling, do not have these keys.
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

// One line per rank. "%a" keeps all bits of a number.
std::string SumsOfAllRanks(Run& run) {
  std::string text;
  for (const std::vector<double>& of_rank : AllGatherObjects(run.world(), SumsOf(run.metrics()))) {
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
  std::vector<double> mine(SumsOf(run.metrics()).size());
  const std::vector<std::vector<double>> saved = ParseSums(text, mine.size());
  const auto rank = static_cast<size_t>(run.world().rank());
  if (saved.size() == static_cast<size_t>(run.world().size())) {
    mine = saved[rank];
  } else if (rank == 0) {
    for (const std::vector<double>& of_rank : saved)
      std::transform(mine.begin(), mine.end(), of_rank.begin(), mine.begin(), std::plus<>());
  }
  SetSums(run.metrics(), mine);
}

}  // namespace

std::vector<NamedTensor> WeightsOf(Run& run) { return TensorsOf(run.model().BorrowWeights()); }

std::vector<NamedTensor> StateOf(Run& run) {
  std::vector<NamedTensor> tensors = WeightsOf(run);
  Append(TensorsOf(run.replica().BorrowState(), "optimizer/"), tensors);
  return tensors;
}

std::vector<NamedTensor> StateToLoad(Run& run) {
  std::vector<NamedTensor> tensors = TensorsOf(run.replica().BorrowWeights());
  Append(TensorsOf(run.replica().BorrowState(), "optimizer/"), tensors);
  return tensors;
}

void TakeState(Run& run) {
  run.replica().ReturnWeights();
  run.replica().ReturnState();
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
