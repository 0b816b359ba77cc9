#ifndef DTRUN_RUNTIME_CHECKPOINT_CHECKPOINT_MANAGER_H_
#define DTRUN_RUNTIME_CHECKPOINT_CHECKPOINT_MANAGER_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/log.h"
#include "ops/communicator.h"
#include "runtime/checkpoint/background_task.h"
#include "runtime/checkpoint/checkpoint_folder.h"
#include "runtime/checkpoint/checkpoint_reader.h"
#include "runtime/checkpoint/checkpoint_writer.h"
#include "runtime/checkpoint/snapshot.h"

namespace dtrun::runtime {

struct CheckpointManagerOptions {
  RetentionOptions retention = {};
  bool sharded = false;
  bool read_only = false;
};

/// The checkpoints of the ranks of a communicator. See <dtrun/checkpoint.h>.
class CheckpointManager {
 public:
  enum class Mode { kNow, kInBackground };

  /// Collective. `log` may be null.
  CheckpointManager(
      ops::Communicator& communicator, const std::string& folder,
      const CheckpointManagerOptions& options, const base::LogSink* log);

  void Save(const SaveRequest& request, const std::vector<Tensor>& tensors, Mode mode);
  void Wait();
  std::vector<CheckpointRecord> List();
  std::vector<CheckpointRecord> Load(const std::vector<Tensor>& tensors, const Wanted& wanted);

 private:
  void OpenFolder();
  void CheckFolderIsShared();
  SaveJob JobOf(const SaveRequest& request, const std::vector<Tensor>& tensors) const;
  bool Writes() const { return options_.sharded || communicator_->rank() == 0; }
  void WriteAll(const SaveJob& job);                                     // rank 0
  void WriteShard(ops::Communicator& communicator, const SaveJob& job);  // collective
  void Prune();
  void LogRefused(const std::vector<CheckpointRecord>& records) const;

  std::unique_ptr<ops::Communicator> communicator_;
  std::unique_ptr<ops::Communicator> background_communicator_;  // of the thread; when sharded
  std::string path_;
  CheckpointManagerOptions options_;
  const base::LogSink* log_;
  std::optional<CheckpointFolder> folder_;  // of rank 0; the thread's while a save is under way
  Snapshot snapshot_;
  bool under_way_ = false;                // the same on all ranks
  std::unique_ptr<BackgroundTask> task_;  // last: it uses the others
};

}  // namespace dtrun::runtime

#endif
