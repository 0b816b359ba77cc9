#ifndef DTRUN_RUNTIME_CHECKPOINT_CHECKPOINT_FILES_H_
#define DTRUN_RUNTIME_CHECKPOINT_CHECKPOINT_FILES_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ops/communicator/communicator_base.h"
#include "runtime/checkpoint/checkpoint_folder.h"
#include "runtime/tensor_file/tensor_file.h"

namespace dtrun::runtime {

/// Elements [first, first + count) of a tensor. They lie in one file.
struct TensorPiece {
  size_t tensor = 0;  ///< index of the tensor
  uint64_t first = 0, count = 0;

  bool operator==(const TensorPiece&) const = default;
};

/// Divides the bytes of the tensors into `parts` parts of nearly equal size. A tensor of less than
/// 1 MiB stays in one piece. Returns the pieces by part, in the order of the tensors.
std::vector<std::vector<TensorPiece>> PlanPieces(const std::vector<Tensor>& tensors, int parts);

/// The name of a piece in its file: the tensor's name or, for a part of the tensor,
/// "name[first:end]".
std::string NameOfPiece(const Tensor& tensor, const TensorPiece& piece);
/// A view of the piece. It has the shape of the whole tensor or, for a part, the shape (count).
Tensor TensorOf(const Tensor& whole, const TensorPiece& piece);

/// The description of a checkpoint to save.
struct SaveRequest {
  std::string name;
  uint64_t step = 0;
  std::optional<double> value = {};
  Metadata metadata = {};
};

/// The complete input of a save. A background thread needs no other data of the caller.
struct SaveJob {
  SaveRequest request;
  uint64_t ranks = 0;                ///< the number of ranks that train together
  std::vector<Tensor> tensors = {};  ///< names, types and shapes; their data is not used
  std::vector<std::vector<TensorPiece>> plan = {};  ///< by file
  std::vector<Tensor> pieces = {};                  ///< this rank's pieces, with their data
};

/// Writes a checkpoint with one file. After an Error, the folder has the checkpoints that it had
/// before.
void WriteAlone(CheckpointFolder& folder, const SaveJob& job);

/// Collective: each rank writes one file, and rank 0 commits the checkpoint. `folder` is NULL
/// except on rank 0. `path` is the path of the folder on this rank.
void WriteTogether(
    ops::Communicator& communicator, CheckpointFolder* folder, const std::string& path,
    const SaveJob& job);

/// A checkpoint in memory. All of its bytes have been verified.
class CheckpointContent {
 public:
  /// Reads all files. Throws Error if a file cannot be read or the checkpoint is not valid.
  explicit CheckpointContent(const StoredCheckpoint& stored);

  /// Throws Error kInvalidArgument if the checkpoint does not match the `asked` tensors. The error
  /// lists tensors that are missing or have another type or shape. Unless `allow_unexpected`, it
  /// also lists tensors that were not asked for.
  void CheckAgainst(const std::vector<Tensor>& asked, bool allow_unexpected) const;
  /// Fills the buffers of `asked`. Requires a successful CheckAgainst.
  void CopyTo(const std::vector<Tensor>& asked) const;

 private:
  const Tensor& Find(const ManifestPiece& piece) const;

  Manifest manifest_;
  std::vector<TensorFile> files_;
};

/// The rule that selects the checkpoint to load.
struct Wanted {
  std::string name = {};  ///< "": any
  bool best = false;
  bool allow_unexpected = false;
};

/// Fills the buffers of `asked` from the wanted checkpoint. Returns the refused checkpoints and,
/// last, the loaded checkpoint. The result is empty if there is no checkpoint. Throws the errors of
/// dtrun_checkpoint_manager_load. After an error, no buffer has changed.
std::vector<CheckpointRecord> LoadFrom(
    const CheckpointFolder& folder, const Wanted& wanted, const std::vector<Tensor>& asked);

}  // namespace dtrun::runtime

#endif  // DTRUN_RUNTIME_CHECKPOINT_CHECKPOINT_FILES_H_
