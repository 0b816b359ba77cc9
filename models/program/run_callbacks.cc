#include "models/program/run_callbacks.h"

#include <cstdio>
#include <utility>

#include "models/callbacks/checkpoints.h"
#include "models/callbacks/early_stopping.h"
#include "models/callbacks/learning_rate.h"
#include "models/callbacks/progress_bar.h"
#include "models/callbacks/tensorboard.h"
#include "models/callbacks/throughput.h"
#include "models/callbacks/timeline.h"

namespace dtrun::models {
namespace {

void PrintProblem(const std::string& line) {
  std::fprintf(stderr, "cnn_fmnist: %s\n", line.c_str());
}

}  // namespace

CallbackList MakeRunCallbacks(
    Context& job, const TrainOptions& options, const std::function<double(uint64_t)>& rate,
    std::unique_ptr<Callback> after_throughput) {
  CallbackList list;
  if (!options.checkpoint_dir.empty()) {
    list.push_back(std::make_unique<BackupAndRestore>(BackupAndRestoreOptions{
        .folder = options.checkpoint_dir,
        .every_batches = options.checkpoint_every,
        .max_to_keep = options.keep_checkpoints,
        .restore = options.resume,
        .delete_at_end = false,
        .print = PrintProblem}));
  }
  list.push_back(std::make_unique<StepSchedule>(rate));
  list.push_back(std::make_unique<Throughput>());
  if (after_throughput != nullptr) list.push_back(std::move(after_throughput));
  list.push_back(std::make_unique<ReportProgress>(job));
  if (options.verbose > 0) {
    const int columns = options.verbose == 1 ? job.terminal_columns() : 0;
    list.push_back(std::make_unique<ProgressBar>(ProgressBarOptions{.columns = columns}));
  }
  if (!options.tensorboard.empty())
    list.push_back(
        std::make_unique<TensorBoard>(TensorBoardOptions{.log_dir = options.tensorboard}));
  if (options.early_stopping > 0) {
    list.push_back(std::make_unique<EarlyStopping>(EarlyStoppingOptions{
        .patience = options.early_stopping, .restore_best_weights = true, .print = PrintLine}));
  }
  return list;
}

}  // namespace dtrun::models
