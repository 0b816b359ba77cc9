#ifndef DTRUN_RUNTIME_CHECKPOINT_CHECKPOINT_FOLDER_H_
#define DTRUN_RUNTIME_CHECKPOINT_CHECKPOINT_FOLDER_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/checkpoint/checkpoint_manifest.h"
#include "runtime/tensor_file/file_system.h"
#include "runtime/tensor_file/tensor_file.h"

namespace dtrun::runtime {

/// What ranks are told of a checkpoint. See dtrun_checkpoint.
struct CheckpointRecord {
  std::string name, path;
  std::string refused = {};  ///< why it is not valid; "": nothing is known against it
  uint64_t step = 0;
  std::optional<double> value = {};
  uint64_t bytes = 0;
  Metadata metadata = {};
};

/// As text, for other ranks of the same build. Bytes that are not UTF-8 are replaced.
std::string FormatRecords(const std::vector<CheckpointRecord>& records);
std::vector<CheckpointRecord> ParseRecords(const std::string& text);

/// The right to write into a folder: a lock of the kernel's (flock) on its file ".lock", which ends
/// with this object or with the process. The file stays, and means nothing by itself; what stands
/// in it is for the error of another one.
class FolderLock {
 public:
  /// Throws Error kUnavailable when another process has it, whose host and process it names, and
  /// kSystem when nothing can be written there.
  explicit FolderLock(const std::string& folder);

 private:
  Descriptor file_;
};

/// Which of two checkpoints is the better one, by their values.
enum class BestBy : int32_t { kNone, kLowest, kHighest };

struct RetentionOptions {
  uint64_t max_to_keep = 0;  ///< of the newest; 0: all
  BestBy best = BestBy::kNone;
};

/// A checkpoint as it lies there.
struct StoredCheckpoint {
  std::string name, path;
  std::optional<Manifest> manifest;
  std::string refused;  ///< why it has no manifest that could be used

  CheckpointRecord Record() const;
};

/// The checkpoints of a folder, as one process sees them, which is the only one to write there:
///
///   FOLDER/ckpt_7/MANIFEST.json, model.safetensors
///   FOLDER/latest -> ckpt_7, best -> ckpt_3        for people
///   FOLDER/.lock
///   FOLDER/.tmp-...                                 not complete, or no longer wanted
///
/// Throws Error kSystem and those of FolderLock. Not thread-safe.
class CheckpointFolder {
 public:
  /// Makes the folder, takes its lock, and removes what another process has left unfinished.
  static CheckpointFolder OpenForWriting(const std::string& path, RetentionOptions retention);
  /// To look at. kSystem if there is no such folder.
  static CheckpointFolder OpenForReading(const std::string& path, RetentionOptions retention);

  /// Oldest first; those without a manifest come last, by name, since they may be the newest.
  std::vector<StoredCheckpoint> List() const;
  /// The best one first, then the newest; without values last.
  void SortByValue(std::vector<StoredCheckpoint>* checkpoints) const;
  /// What is there of that name.
  std::optional<StoredCheckpoint> Find(const std::string& name) const;

  /// A new folder for the files of a checkpoint, whose path has no meaning. Throws kInvalidArgument
  /// when there is something else of that name.
  std::string Begin(const std::string& name);
  /// The files in `draft` are on the disk: makes them the checkpoint `name`, the newest one.
  void Commit(const std::string& draft, const std::string& name, Manifest manifest);
  /// Removes a draft; never throws.
  void Discard(const std::string& draft) noexcept;

  /// Removes those that are not to be kept. Returns what could not be removed, and why; "": none.
  std::string Prune();

  const std::string& path() const { return path_; }

 private:
  CheckpointFolder(std::string path, RetentionOptions retention)
      : path_(std::move(path)), retention_(retention) {}

  std::string PathOf(const std::string& name) const { return path_ + "/" + name; }
  std::string TemporaryPath(const std::string& name);
  void RemoveUnfinished();
  void Remove(const std::string& name);
  void PlaceLinks(const std::string& latest);
  const StoredCheckpoint* Best(const std::vector<StoredCheckpoint>& checkpoints) const;

  std::string path_;
  RetentionOptions retention_;
  std::optional<FolderLock> lock_;
  uint64_t next_sequence_ = 1;
  uint64_t temporaries_ = 0;
};

/// Throws Error kInvalidArgument unless a checkpoint can have this name.
void CheckCheckpointName(const std::string& name);

}  // namespace dtrun::runtime

#endif  // DTRUN_RUNTIME_CHECKPOINT_CHECKPOINT_FOLDER_H_
