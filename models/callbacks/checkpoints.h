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
  /// Folder and name; the name may have {epoch}, counted from 1, and numbers of the logs: see
  /// log_values.h. One without any is written again and again.
  std::string path = "./training_checkpoints/ckpt_{epoch}";
  uint64_t every_epochs = 1;
  uint64_t every_batches = 0;  ///< of all epochs, instead of every_epochs; 0: at the epochs' ends
  bool save_best_only = false;
  std::string monitor = "val_loss";  ///< what `best` is about
  MonitorMode mode = MonitorMode::kAuto;
  bool save_weights_only = false;  ///< without the optimizer's state
  uint64_t max_to_keep = 0;        ///< newest ones; 0: all
  bool sharded = false;            ///< every rank writes its part; the folder is shared by all
  bool asynchronous = true;        ///< training goes on while the file is written
  Print print = {};                ///< says what could not be saved; also in the History
};

/// Saves the model while it trains, its buffers as the mean of all ranks', for
/// dtrun::CheckpointManager to load. A checkpoint that cannot
/// be written does not end training: see Run::NotWritten.
class ModelCheckpoint : public Callback {
 public:
  /// Throws Error kInvalidArgument for a path without a name, every_epochs of 0, and what Monitor
  /// throws.
  explicit ModelCheckpoint(ModelCheckpointOptions options = {});

  std::string name() const override { return "ModelCheckpoint"; }
  /// Throws AgreedError when the folder cannot be used, or another job uses it.
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
  uint64_t every_batches = 0;  ///< besides at each epoch's end; 0: at the epochs' ends
  uint64_t max_to_keep = 1;    ///< newest ones; 0: all
  bool restore = true;         ///< or begin anew, beside what is there
  bool delete_at_end = true;   ///< of a training that ended as it should
  bool sharded = false;        ///< every rank writes its part; the folder is shared by all
  bool asynchronous = true;    ///< training goes on while the file is written
  Print print = {};            ///< says where it goes on, and what could not be saved
};

/// Makes a training that was broken off go on where its last backup was made, also inside an epoch.
/// With as many ranks as before it is the same training, bit for bit; with another number it is
/// the same but for rounding, as long as the global batch is the same. Losses and metrics of a
/// broken epoch are those of the whole epoch.
class BackupAndRestore : public Callback {
 public:
  /// Throws Error kInvalidArgument when the folder is empty.
  explicit BackupAndRestore(BackupAndRestoreOptions options = {});

  std::string name() const override { return "BackupAndRestore"; }
  /// Throws AgreedError when the folder cannot be used, another job uses it, or what it holds is no
  /// backup of this model.
  void OnTrainBegin(Run& run) override;
  void OnBatchEnd(Run& run, const Logs& logs) override;
  void OnEpochEnd(Run& run, Logs& logs) override;
  void OnTrainEnd(Run& run, const Logs& logs) override;

 private:
  void Restore(Run& run);
  void Remove(const std::vector<Checkpoint>& backups) const;

  BackupAndRestoreOptions options_;
  std::unique_ptr<CheckpointManager> manager_;
};

/// What a checkpoint holds of a run, so that it goes on as if it had not been broken off: the
/// parameters, the network's buffers and the optimizer's state ("optimizer/..."), and in its
/// metadata the position, the learning rate, the loss's scale if there is one, and what the metrics
/// of the epoch add up to on each rank. The order of examples and the dropout masks need nothing
/// more: they are functions of the position.

/// The values of the parameters and of the network's buffers.
std::vector<NamedTensor> WeightsOf(Run& run);
/// And the optimizer's state, to be saved; valid until the next step. Collective.
std::vector<NamedTensor> StateOf(Run& run);
/// The same to be loaded into; what was loaded counts after TakeState. Collective, both.
std::vector<NamedTensor> StateToLoad(Run& run);
void TakeState(Run& run);

/// Collective.
Metadata RemarksOf(Run& run);

/// Goes on where the metadata says. In the same number of ranks it is the same bit for bit; in
/// another, rank 0 has the sums of all. An epoch of another number of steps begins again. Without
/// a loss scale in it, `run.loss_scale` stays what it is. Throws
/// Error kInvalidArgument when the metadata is not that of a run.
void ResumeFrom(Run& run, const Metadata& metadata);

}  // namespace dtrun::models

#endif  // DTRUN_MODELS_CALLBACKS_CHECKPOINTS_H_
