#ifndef DTRUN_RUNTIME_CHECKPOINT_CHECKPOINT_MANAGER_H_
#define DTRUN_RUNTIME_CHECKPOINT_CHECKPOINT_MANAGER_H_

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/process.h"
#include "ops/communicator/communicator_base.h"
#include "runtime/checkpoint/checkpoint_files.h"
#include "runtime/checkpoint/checkpoint_folder.h"
#include "runtime/tensor_file/tensor_file.h"

namespace dtrun::runtime {

/// A thread that runs one task at a time, with all signals blocked. Not thread-safe.
class BackgroundTask {
 public:
  /// Throws std::system_error if no thread can be created.
  BackgroundTask();
  /// Waits for the task.
  ~BackgroundTask();
  BackgroundTask(const BackgroundTask&) = delete;
  BackgroundTask& operator=(const BackgroundTask&) = delete;

  /// Requires that no task is under way.
  void Start(std::function<void()> task);
  /// True between Start and Finish.
  bool under_way() const { return under_way_; }
  /// Waits for the end of the task. Throws the exception that the task threw.
  void Finish();

 private:
  void Run();

  bool under_way_ = false;  // used only by the caller's thread
  std::mutex mutex_;
  std::condition_variable changed_;
  std::function<void()> task_;
  std::exception_ptr error_;
  bool ends_ = false;
  std::thread thread_;
};

/// Memory for a copy of tensors. The next copy reuses it.
class Snapshot {
 public:
  /// Allocates the memory for a copy of `tensors`. Throws std::bad_alloc.
  void Reserve(const std::vector<Tensor>& tensors);
  /// Copies `tensors` into the snapshot and returns the copies. Requires Reserve.
  std::vector<Tensor> Copy(const std::vector<Tensor>& tensors);

 private:
  std::unique_ptr<char[]> memory_;
  uint64_t bytes_ = 0;
};

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
  std::unique_ptr<ops::Communicator> background_communicator_;  // null unless sharded
  std::string path_;
  CheckpointManagerOptions options_;
  const base::LogSink* log_;
  std::optional<CheckpointFolder> folder_;  // rank 0 only; the thread uses it during a save
  Snapshot snapshot_;
  bool under_way_ = false;                // the same on all ranks
  std::unique_ptr<BackgroundTask> task_;  // last: its task uses the other members
};

}  // namespace dtrun::runtime

#endif  // DTRUN_RUNTIME_CHECKPOINT_CHECKPOINT_MANAGER_H_
