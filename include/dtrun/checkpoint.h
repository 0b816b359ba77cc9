#ifndef DTRUN_CHECKPOINT_H_
#define DTRUN_CHECKPOINT_H_

#include <dtrun/c.h>
#include <dtrun/communicator.h>
#include <dtrun/error.h>
#include <dtrun/tensors.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace dtrun {

/// The rule that finds the better of two checkpoints, by the values that they were saved with.
enum class Best : int32_t {
  kNone = DTRUN_BEST_NONE,        ///< values are not compared
  kLowest = DTRUN_BEST_LOWEST,    ///< for example, a loss
  kHighest = DTRUN_BEST_HIGHEST,  ///< for example, an accuracy
};

/// The options of a CheckpointManager.
struct CheckpointOptions {
  uint64_t max_to_keep = 0;  ///< keeps this many of the newest checkpoints; 0: all
  Best best = Best::kNone;   ///< the best checkpoint is also kept
  /// True: every rank writes a part of the bytes, into a folder that all ranks share. False: rank 0
  /// writes, into a folder of its host.
  bool sharded = false;
  bool read_only = false;  ///< for a reader beside a job that saves: writes no file, takes no lock
  /// True: the manager does nothing, and the list is empty. See Strategy::Checkpoints.
  bool discard = false;
};

/// The options of a save.
struct SaveOptions {
  uint64_t step = 0;  ///< the training step of the saved values
  /// A file name: without '/', no '.' in front, not "latest" or "best". A checkpoint of that name
  /// is replaced at the moment when the new one is complete. Empty: "ckpt_<step>".
  std::string name = {};
  std::optional<double> value = {};  ///< finds the best checkpoint; finite
  Metadata metadata = {};            ///< epoch, position in the data, ...
};

/// The options of a load.
struct LoadOptions {
  std::string name = {};          ///< only this checkpoint; empty: the newest valid one
  bool best = false;              ///< by value instead of by age, as CheckpointOptions::best says
  bool allow_unexpected = false;  ///< ignore tensors of the checkpoint that are not requested
};

/// A description of a checkpoint.
struct Checkpoint {
  std::string name;   ///< the name of its folder, for example "ckpt_7"
  std::string path;   ///< of its folder, which has model.safetensors (or its shards)
  uint64_t step = 0;  ///< as saved; 0 if the checkpoint is not valid and its step is unknown
  std::optional<double> value;  ///< as saved, for CheckpointOptions::best
  uint64_t bytes = 0;           ///< total size of its files
  Metadata metadata;            ///< the annotations that were saved
  std::string refused;          ///< why it is not valid, in a sentence; empty: no fault is known
};

/// The result of a load.
struct Loaded {
  std::optional<Checkpoint> checkpoint;  ///< empty: no checkpoint, no tensor changed
  std::vector<Checkpoint> refused;       ///< better candidates that are not valid
};

/// The checkpoints of a job in one folder. Each checkpoint is a subfolder with tensors in the
/// safetensors format and a manifest. `latest` and `best` are symbolic links.
///
///   dtrun::CheckpointManager checkpoints(job.world(), "training_checkpoints", {.max_to_keep = 3});
///   const dtrun::Loaded loaded = checkpoints.Load(tensors);  // no checkpoint: does nothing
///   ...
///   checkpoints.StartSave({.step = step}, tensors);          // writes while training continues
///   ...
///   checkpoints.Wait();                                      // before Shutdown
///
/// A checkpoint is complete or absent. It gets its name when all of it is on the disk. A kill, a
/// crash or a full disk at any moment leaves the earlier checkpoints intact. If a job is killed
/// during a save, the next job removes the unfinished checkpoint.
///
/// All functions except the destructor are collective. All ranks pass the same arguments, and every
/// rank throws the same error. The manager uses duplicates of the communicator, so it never
/// interleaves with the caller's own operations. Not thread-safe.
///
/// Errors: kInvalidArgument (an argument, an invalid checkpoint, or a checkpoint of another model),
/// kMismatch (ranks passed different tensors), kUnavailable (another job saves in this folder; the
/// error names its host and process), kSystem (the disk, and why), and the errors of every
/// collective.
class CheckpointManager {
 public:
  /// Creates the folder if it is missing, and locks it. The lock ends with this object, or with the
  /// process in any case.
  CheckpointManager(
      Communicator& communicator, const std::string& folder,
      const CheckpointOptions& options = {}) {
    if (options.discard) return;
    dtrun_checkpoint_options told = dtrun_default_checkpoint_options();
    told.max_to_keep = options.max_to_keep;
    told.best = static_cast<int32_t>(options.best);
    told.sharded = options.sharded ? 1 : 0;
    told.read_only = options.read_only ? 1 : 0;
    dtrun_checkpoint_manager* manager = nullptr;
    detail::Check(
        dtrun_checkpoint_manager_create(communicator.handle(), folder.c_str(), &told, &manager));
    handle_.reset(manager);
  }

  /// Saves the values of rank 0 or, when sharded, of each rank for its part: ranks that train
  /// together have the same values. When it returns, the checkpoint is on the disk. After an error,
  /// the folder has the checkpoints that it had before.
  void Save(const SaveOptions& options, const std::vector<NamedTensor>& tensors) {
    SaveTensorsOf(options, tensors, 0);
  }

  /// The same in a background thread. Returns when the tensors are copied. The memory of the copy
  /// is kept for the next save. One save is under way at a time: this function and Save wait for
  /// the previous save.
  ///
  /// If a save fails, the next call of Wait, Save, StartSave, List or Load throws its error once,
  /// and does nothing else. Training may continue, and later saves work.
  void StartSave(const SaveOptions& options, const std::vector<NamedTensor>& tensors) {
    SaveTensorsOf(options, tensors, 1);
  }

  /// Waits for the save under way, and throws its error.
  void Wait() {
    if (handle_ == nullptr) return;
    detail::Check(dtrun_checkpoint_manager_wait(handle_.get()));
  }

  /// The checkpoints, oldest first. The list includes invalid checkpoints, and checks validity
  /// without reading the tensors.
  std::vector<Checkpoint> List() {
    if (handle_ == nullptr) return {};
    dtrun_checkpoint_list* list = nullptr;
    detail::Check(dtrun_checkpoint_manager_list(handle_.get(), &list));
    return Records(list);
  }

  /// Fills the tensors' buffers, on all ranks, from the newest valid checkpoint. The checkpoint may
  /// come from any number of ranks. Rank 0 reads, and holds the whole checkpoint in memory
  /// meanwhile. Everything is checked before a buffer is touched: either all buffers are filled or
  /// none. If the newest checkpoint is not valid, an older one is loaded. Then rank 0 reports the
  /// invalid ones on stderr, and the result lists them.
  ///
  /// Throws kInvalidArgument in three cases: the checkpoint is of another model, no checkpoint has
  /// the given name, or there are checkpoints but none is valid. For another model, the error lists
  /// the tensors that are missing, unexpected, or of another type or shape.
  Loaded Load(const std::vector<NamedTensor>& tensors, const LoadOptions& options = {}) {
    if (handle_ == nullptr) return {};
    dtrun_load_options told = dtrun_default_load_options();
    told.name = options.name.empty() ? nullptr : options.name.c_str();
    told.best = options.best ? 1 : 0;
    told.allow_unexpected = options.allow_unexpected ? 1 : 0;
    const std::vector<dtrun_tensor> buffers = detail::ToC(tensors);
    dtrun_checkpoint_list* list = nullptr;
    detail::Check(
        dtrun_checkpoint_manager_load(handle_.get(), buffers.data(), buffers.size(), &told, &list));
    Loaded loaded;
    loaded.refused = Records(list);
    if (!loaded.refused.empty()) {
      loaded.checkpoint = std::move(loaded.refused.back());
      loaded.refused.pop_back();
    }
    return loaded;
  }

 private:
  void SaveTensorsOf(
      const SaveOptions& options, const std::vector<NamedTensor>& tensors, int32_t asynchronous) {
    if (handle_ == nullptr) return;
    const std::vector<dtrun_metadata> metadata = detail::MetadataToC(options.metadata);
    dtrun_save_options told = dtrun_default_save_options();
    told.name = options.name.empty() ? nullptr : options.name.c_str();
    told.step = options.step;
    told.value = options.value.value_or(0);
    told.has_value = options.value ? 1 : 0;
    told.asynchronous = asynchronous;
    told.metadata = metadata.data();
    told.metadata_count = metadata.size();
    const std::vector<dtrun_tensor> list = detail::ToC(tensors);
    detail::Check(dtrun_checkpoint_manager_save(handle_.get(), list.data(), list.size(), &told));
  }

  static std::vector<Checkpoint> Records(dtrun_checkpoint_list* handle) {
    const std::unique_ptr<
        dtrun_checkpoint_list,
        detail::Destroyer<dtrun_checkpoint_list, dtrun_checkpoint_list_destroy>>
        list(handle);
    std::vector<Checkpoint> records;
    for (size_t i = 0; i < dtrun_checkpoint_list_count(handle); ++i) {
      const dtrun_checkpoint& told = *dtrun_checkpoint_list_at(handle, i);
      Checkpoint record;
      record.name = told.name;
      record.path = told.path;
      record.step = told.step;
      if (told.has_value != 0) record.value = told.value;
      record.bytes = told.bytes;
      for (uint64_t m = 0; m < told.metadata_count; ++m)
        record.metadata[told.metadata[m].key] = told.metadata[m].value;
      if (told.refused != nullptr) record.refused = told.refused;
      records.push_back(std::move(record));
    }
    return records;
  }

  std::unique_ptr<
      dtrun_checkpoint_manager,
      detail::Destroyer<dtrun_checkpoint_manager, dtrun_checkpoint_manager_destroy>>
      handle_;  // null: CheckpointOptions::discard
};

}  // namespace dtrun

#endif
