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

/// Elements [first, first + count) of a tensor, which lie in one file.
struct TensorPiece {
  size_t tensor = 0;  ///< index
  uint64_t first = 0, count = 0;

  bool operator==(const TensorPiece&) const = default;
};

/// The tensors' bytes in `parts` parts that are as equal as can be with tensors of less than 1 MiB
/// in one piece; by part, in the tensors' order.
std::vector<std::vector<TensorPiece>> PlanPieces(const std::vector<Tensor>& tensors, int parts);

/// What a piece is called in its file: the tensor's name or, of a part, "name[first:end]".
std::string NameOfPiece(const Tensor& tensor, const TensorPiece& piece);
/// A piece as a tensor: of the shape of the whole, or (count).
Tensor TensorOf(const Tensor& whole, const TensorPiece& piece);

/// What is to be saved, and as what.
struct SaveRequest {
  std::string name;
  uint64_t step = 0;
  std::optional<double> value = {};
  Metadata metadata = {};
};

/// A save that a thread can do without its caller.
struct SaveJob {
  SaveRequest request;
  uint64_t ranks = 0;                ///< that train together
  std::vector<Tensor> tensors = {};  ///< as they are called; their data is not looked at
  std::vector<std::vector<TensorPiece>> plan = {};  ///< by file
  std::vector<Tensor> pieces = {};                  ///< this rank's, with their data
};

/// Throws Error; the folder then has the checkpoints that it had.
void WriteAlone(CheckpointFolder& folder, const SaveJob& job);

/// Collective: each rank writes the file of its number. `folder` is rank 0's, NULL elsewhere;
/// `path` is what the others call it.
void WriteTogether(
    ops::Communicator& communicator, CheckpointFolder* folder, const std::string& path,
    const SaveJob& job);

/// A checkpoint in memory, all of whose bytes have been checked.
class CheckpointContent {
 public:
  /// Throws Error kInvalidArgument or kSystem when it is not valid.
  explicit CheckpointContent(const StoredCheckpoint& stored);

  /// Throws Error kInvalidArgument that lists the tensors which are missing, of another type or
  /// shape or, unless that is allowed, not asked for.
  void CheckAgainst(const std::vector<Tensor>& asked, bool allow_unexpected) const;
  /// After CheckAgainst.
  void CopyTo(const std::vector<Tensor>& asked) const;

 private:
  const Tensor& Find(const ManifestPiece& piece) const;

  Manifest manifest_;
  std::vector<TensorFile> files_;
};

/// What a folder's checkpoints are tried for.
struct Wanted {
  std::string name = {};  ///< "": any
  bool best = false;
  bool allow_unexpected = false;
};

/// Fills the buffers of `asked` from the checkpoint that is wanted. Returns those that were refused
/// and, last, the one that was loaded; nothing if there is no checkpoint. Throws Error as
/// dtrun_checkpoint_manager_load; then no buffer has been touched.
std::vector<CheckpointRecord> LoadFrom(
    const CheckpointFolder& folder, const Wanted& wanted, const std::vector<Tensor>& asked);

}  // namespace dtrun::runtime

#endif  // DTRUN_RUNTIME_CHECKPOINT_CHECKPOINT_FILES_H_
