#ifndef DTRUN_RUNTIME_CHECKPOINT_CHECKPOINT_READER_H_
#define DTRUN_RUNTIME_CHECKPOINT_CHECKPOINT_READER_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "runtime/checkpoint/checkpoint_folder.h"
#include "runtime/checkpoint/tensor_file.h"

namespace dtrun::runtime {

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

#endif
