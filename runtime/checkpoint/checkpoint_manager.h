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

/// A thread for one task at a time. It takes no signals. For one thread.
class BackgroundTask {
 public:
  /// Throws std::system_error where there can be no thread.
  BackgroundTask();
  /// Waits for the task.
  ~BackgroundTask();
  BackgroundTask(const BackgroundTask&) = delete;
  BackgroundTask& operator=(const BackgroundTask&) = delete;

  /// After Finish, or as the first.
  void Start(std::function<void()> task);
  /// Started, and Finish was not called.
  bool under_way() const { return under_way_; }
  /// Returns when the task has ended. Throws what it threw.
  void Finish();

 private:
  void Run();

  bool under_way_ = false;  // of the caller alone
  std::mutex mutex_;
  std::condition_variable changed_;
  std::function<void()> task_;
  std::exception_ptr error_;
  bool ends_ = false;
  std::thread thread_;
};

/// Memory that tensors are copied into, kept for the next time.
class Snapshot {
 public:
  /// Takes the memory that a copy of these needs. Throws std::bad_alloc.
  void Reserve(const std::vector<Tensor>& tensors);
  /// The same tensors, with data of the snapshot's own; it has been reserved.
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

#endif  // DTRUN_RUNTIME_CHECKPOINT_CHECKPOINT_MANAGER_H_
