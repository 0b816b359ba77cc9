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

/// Which of two checkpoints is the better one, by the value that they were saved with.
enum class Best : int32_t {
  kNone = DTRUN_BEST_NONE,
  kLowest = DTRUN_BEST_LOWEST,    ///< a loss
  kHighest = DTRUN_BEST_HIGHEST,  ///< an accuracy
};

struct CheckpointOptions {
  uint64_t max_to_keep = 0;  ///< of the newest checkpoints; 0: all
  Best best = Best::kNone;   ///< this one is kept besides
  /// Every rank writes a part of the bytes, into a folder that all of them share. Otherwise rank 0
  /// writes, and the folder is one of its host.
  bool sharded = false;
  bool read_only = false;  ///< nothing is written and no lock taken: beside a job that saves there
};

struct SaveOptions {
  uint64_t step = 0;
  /// A file name: no '/', no '.' in front, not "latest" or "best". The checkpoint of that name is
  /// replaced at the moment when the new one is complete. Empty: "ckpt_<step>".
  std::string name = {};
  std::optional<double> value = {};  ///< by which the best one is found; finite
  Metadata metadata = {};            ///< epoch, position in the data, ...
};

struct LoadOptions {
  std::string name = {};          ///< this checkpoint and no other; empty: the newest valid one
  bool best = false;              ///< by value instead of by age, as CheckpointOptions::best says
  bool allow_unexpected = false;  ///< the checkpoint may have tensors that are not asked for
};

/// What is known of a checkpoint.
struct Checkpoint {
  std::string name;
  std::string path;  ///< of its folder, which has model.safetensors (or its shards)
  uint64_t step = 0;
  std::optional<double> value;
  uint64_t bytes = 0;  ///< of its files
  Metadata metadata;
  std::string refused;  ///< why it is not valid, in a sentence; empty: nothing is known against it
};

struct Loaded {
  std::optional<Checkpoint> checkpoint;  ///< none: there is no checkpoint, and nothing was touched
  std::vector<Checkpoint> refused;       ///< would have been preferred, but are not valid
};

/// The checkpoints of a job in one folder. Each is a folder in it with tensors in the safetensors
/// format and a manifest; `latest` and `best` are symbolic links.
///
///   dtrun::CheckpointManager checkpoints(job.world(), "training_checkpoints", {.max_to_keep = 3});
///   const dtrun::Loaded loaded = checkpoints.Load(tensors);  // none yet: nothing happens
///   ...
///   checkpoints.StartSave({.step = step}, tensors);          // goes on while this writes
///   ...
///   checkpoints.Wait();                                      // before Shutdown
///
/// A checkpoint is there as a whole or not at all: it appears under its name once all of it is on
/// the disk, and a kill, a crash or a full disk at any moment leaves those before it as they are.
/// What a job that was killed has left unfinished is removed by the next one.
///
/// All functions but the destructor are collective and are called by all ranks with the same
/// arguments; every rank throws the same error. Not thread-safe. It talks over duplicates of the
/// communicator, so that operations of the caller's own never interleave with it.
///
/// Errors: kInvalidArgument (an argument; a checkpoint that is not valid or one of another model),
/// kMismatch (ranks passed different tensors), kUnavailable (another job saves in this folder,
/// whose host and process it names), kSystem (the disk, and why), and those of every collective.
class CheckpointManager {
 public:
  /// Makes the folder if it is missing and takes its lock, which ends with this object or with the
  /// process, however that ends.
  CheckpointManager(
      Communicator& communicator, const std::string& folder,
      const CheckpointOptions& options = {}) {
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
  /// together have the same. When it returns, the checkpoint is on the disk. After an error the
  /// folder has the checkpoints that it had.
  void Save(const SaveOptions& options, const std::vector<NamedTensor>& tensors) {
    SaveTensorsOf(options, tensors, 0);
  }

  /// The same in a thread of its own: returns when the tensors are copied, into memory that is kept
  /// for the next time. One is under way at a time: waits for the one before, as Save does. The
  /// error of one that failed is thrown once, by the next call of Wait, Save, StartSave or Load,
  /// which then does nothing else; training may go on, and the next call saves again.
  void StartSave(const SaveOptions& options, const std::vector<NamedTensor>& tensors) {
    SaveTensorsOf(options, tensors, 1);
  }

  /// Returns when nothing is under way. Throws the error of what was.
  void Wait() { detail::Check(dtrun_checkpoint_manager_wait(handle_.get())); }

  /// The checkpoints, oldest first, also those that are not valid as far as that can be seen
  /// without reading all of their bytes.
  std::vector<Checkpoint> List() {
    dtrun_checkpoint_list* list = nullptr;
    detail::Check(dtrun_checkpoint_manager_list(handle_.get(), &list));
    return Records(list);
  }

  /// Fills the tensors' buffers, on all ranks, from the newest checkpoint that is valid, of any
  /// number of ranks. Rank 0 reads, and holds all of it in memory meanwhile. Everything is checked
  /// before a buffer is touched: all of them are filled or none. When it has to fall back to an
  /// older one, rank 0 says which and why in a line on stderr, and so does the result.
  ///
  /// Throws kInvalidArgument when the checkpoint is one of another model (it lists the tensors that
  /// are missing, unexpected, or have another type or shape), when there is none of that name, and
  /// when there are checkpoints and none is valid.
  Loaded Load(const std::vector<NamedTensor>& tensors, const LoadOptions& options = {}) {
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
      handle_;
};

}  // namespace dtrun

#endif
