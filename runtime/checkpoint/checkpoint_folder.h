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

/// A description of a checkpoint, as rank 0 sends it to the other ranks. See dtrun_checkpoint.
struct CheckpointRecord {
  std::string name, path;
  std::string refused = {};  ///< why it is not valid; "": no fault is known
  uint64_t step = 0;
  std::optional<double> value = {};
  uint64_t bytes = 0;
  Metadata metadata = {};
};

/// Formats records for other ranks of the same build. Replaces bytes that are not UTF-8.
std::string FormatRecords(const std::vector<CheckpointRecord>& records);
std::vector<CheckpointRecord> ParseRecords(const std::string& text);

/// The right to write into a folder: an flock lock on the file ".lock" of the folder. The lock ends
/// with this object or with the process. The file remains, but alone it is no lock. Its text
/// names the holder, for the error message of another process.
class FolderLock {
 public:
  /// Throws Error kUnavailable if another process holds the lock; the error names its host and
  /// process. Throws kSystem if the file cannot be written or locked.
  explicit FolderLock(const std::string& folder);

 private:
  Descriptor file_;
};

/// The rule that finds the better of two checkpoints by their values.
enum class BestBy : int32_t { kNone, kLowest, kHighest };

struct RetentionOptions {
  uint64_t max_to_keep = 0;  ///< keeps this many of the newest checkpoints; 0: all
  BestBy best = BestBy::kNone;
};

/// A checkpoint as found in the folder. It may be invalid.
struct StoredCheckpoint {
  std::string name, path;
  std::optional<Manifest> manifest;
  std::string refused;  ///< why it is not valid; "": no fault is known

  CheckpointRecord Record() const;
};

/// The checkpoints of a folder. At most one process at a time writes there:
///
///   FOLDER/ckpt_7/MANIFEST.json, model.safetensors
///   FOLDER/latest -> ckpt_7, best -> ckpt_3         symbolic links for people
///   FOLDER/.lock
///   FOLDER/.tmp-...                                 incomplete, or about to be removed
///   FOLDER/.old-ckpt_7                              replaced in two steps, not yet removed
///
/// Errors: kSystem and those of FolderLock. Not thread-safe.
class CheckpointFolder {
 public:
  /// Creates the folder if it is missing, locks it, and removes the remains of an earlier process.
  static CheckpointFolder OpenForWriting(const std::string& path, RetentionOptions retention);
  /// Takes no lock and writes no file. Throws kSystem if the folder cannot be read.
  static CheckpointFolder OpenForReading(const std::string& path, RetentionOptions retention);

  /// Oldest first. Checkpoints without a manifest come last, by name: they may be the newest.
  std::vector<StoredCheckpoint> List() const;
  /// Best value first; of equal values, the newest first; without a value last. Checkpoints without
  /// a manifest come first of all: they may be the best.
  void SortByValue(std::vector<StoredCheckpoint>* checkpoints) const;
  /// The checkpoint `name`, valid or not; nullopt: the folder has no such entry. Throws
  /// kInvalidArgument if `name` is not allowed.
  std::optional<StoredCheckpoint> Find(const std::string& name) const;

  /// Creates a draft folder for the files of checkpoint `name`, and returns its path. Throws
  /// kInvalidArgument if something other than a checkpoint has that name.
  std::string Begin(const std::string& name);
  /// Writes the manifest into `draft` and makes `draft` the checkpoint `name`, the newest one. The
  /// files in `draft` must be on the disk.
  void Commit(const std::string& draft, const std::string& name, Manifest manifest);
  /// Removes a draft, and ignores errors.
  void Discard(const std::string& draft) noexcept;

  /// Removes the checkpoints beyond the retention limit. Returns the first error; "": none.
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

/// Throws Error kInvalidArgument unless `name` is allowed for a checkpoint.
void CheckCheckpointName(const std::string& name);

}  // namespace dtrun::runtime

#endif  // DTRUN_RUNTIME_CHECKPOINT_CHECKPOINT_FOLDER_H_
