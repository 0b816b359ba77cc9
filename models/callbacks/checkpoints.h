#ifndef DTRUN_MODELS_CALLBACKS_CHECKPOINTS_H_
#define DTRUN_MODELS_CALLBACKS_CHECKPOINTS_H_

#include <dtrun/checkpoint.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "models/callbacks/callback.h"
#include "models/callbacks/log_values.h"

namespace dtrun::models {

struct ModelCheckpointOptions {
  /// Folder and name. The name may contain {epoch}, counted from 1, and numbers of the logs; see
  /// FillIn. A name without such a field is overwritten every time.
  std::string path = "./training_checkpoints/ckpt_{epoch}";
  uint64_t every_epochs = 1;
  uint64_t every_batches = 0;  ///< over all epochs, instead of every_epochs; 0: use every_epochs
  bool save_best_only = false;
  std::string monitor = "val_loss";  ///< the number for save_best_only
  MonitorMode mode = MonitorMode::kAuto;
  bool save_weights_only = false;  ///< without the optimizer's state
  uint64_t max_to_keep = 0;        ///< keeps the newest checkpoints; 0: all
  bool sharded = false;            ///< every rank writes its part; all hosts must share the folder
  bool asynchronous = true;        ///< training continues while the file is written
  Print print = {};                ///< prints failed saves; the History has them too
};

/// Saves the model during training for dtrun::CheckpointManager to load. The saved buffers are the
/// mean over all ranks. If a checkpoint cannot be written, training continues: see Run::NotWritten.
class ModelCheckpoint : public Callback {
 public:
  /// Throws Error kInvalidArgument for a path without a name and for every_epochs of 0. Throws the
  /// errors of Monitor's constructor.
  explicit ModelCheckpoint(ModelCheckpointOptions options = {});

  std::string name() const override { return "ModelCheckpoint"; }
  /// Throws AgreedError if the folder cannot be used, or another job uses it.
  void OnTrainBegin(Run& run) override;
  void OnBatchEnd(Run& run, const Logs& logs) override;
  void OnEpochEnd(Run& run, Logs& logs) override;
  void OnTrainEnd(Run& run, const Logs& logs) override;

 private:
  void Consider(Run& run, const Logs& logs, uint64_t epoch);

  ModelCheckpointOptions options_;
  Monitor monitor_;
  double best_;
  std::unique_ptr<CheckpointManager> manager_;
};

struct BackupAndRestoreOptions {
  std::string folder = "./training_backup";
  uint64_t every_batches = 0;  ///< also at the ends of epochs and of the training; 0: only there
  uint64_t max_to_keep = 1;    ///< keeps the newest backups; 0: all
  bool restore = true;         ///< false: start anew, beside existing backups
  bool delete_at_end = true;   ///< only if training ends without an error
  bool sharded = false;        ///< every rank writes its part; all hosts must share the folder
  bool asynchronous = true;    ///< training continues while the file is written
  Print print = {};            ///< prints the position of a restart, and failed saves
};

/// Lets an interrupted training continue from its last backup, even inside an epoch. With the same
/// number of ranks, the results are the same bits. With another number of ranks and the same global
/// batch, the results differ only by rounding. Losses and metrics of an interrupted epoch cover the
/// whole epoch.
class BackupAndRestore : public Callback {
 public:
  /// Throws Error kInvalidArgument if the folder's name is empty.
  explicit BackupAndRestore(BackupAndRestoreOptions options = {});

  std::string name() const override { return "BackupAndRestore"; }
  /// Throws AgreedError if the folder cannot be used, another job uses it, or its content is not a
  /// backup of this model.
  void OnTrainBegin(Run& run) override;
  void OnBatchEnd(Run& run, const Logs& logs) override;
  void OnEpochEnd(Run& run, Logs& logs) override;
  std::string OnPreemption(Run& run) override;
  void OnEpochCut(Run& run) override;
  void OnTrainEnd(Run& run, const Logs& logs) override;

 private:
  void Restore(Run& run);
  void SaveState(Run& run, bool asynchronous);
  void Remove(const std::vector<Checkpoint>& backups) const;

  BackupAndRestoreOptions options_;
  std::unique_ptr<CheckpointManager> manager_;
};

/// A checkpoint of a run has the full state to continue the run. Its tensors are the parameters,
/// the network's buffers and the optimizer's state ("optimizer/..."). Its metadata has the
/// position, the learning rate, the loss scale if there is one, and each rank's sums of the epoch's
/// metrics. The order of examples and the dropout masks are functions of the position, so they need
/// no further state.

/// The values of the parameters and of the network's buffers.
std::vector<NamedTensor> WeightsOf(Run& run);
/// The values and the optimizer's state, for saving. Valid until the next step. Collective.
std::vector<NamedTensor> StateOf(Run& run);
/// The same tensors, for loading. Call TakeState after the load. Both are collective.
std::vector<NamedTensor> StateToLoad(Run& run);
void TakeState(Run& run);

/// The metadata of a checkpoint of the run. Collective.
Metadata RemarksOf(Run& run);

/// Continues at the position in `metadata`. With the same number of ranks, the sums of metrics are
/// restored bit for bit. With another number of ranks, rank 0 gets the sums of all ranks. If the
/// number of steps per epoch differs, the epoch starts again. If `metadata` has no loss scale,
/// `run.loss_scale` is unchanged. Throws Error kInvalidArgument if `metadata` is not from a run.
void ResumeFrom(Run& run, const Metadata& metadata);

}  // namespace dtrun::models

#endif  // DTRUN_MODELS_CALLBACKS_CHECKPOINTS_H_
