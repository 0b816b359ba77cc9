#ifndef DTRUN_RUNTIME_CHECKPOINT_CHECKPOINT_WRITER_H_
#define DTRUN_RUNTIME_CHECKPOINT_CHECKPOINT_WRITER_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ops/communicator.h"
#include "runtime/checkpoint/checkpoint_folder.h"
#include "runtime/checkpoint/piece_plan.h"
#include "runtime/checkpoint/tensor.h"

namespace dtrun::runtime {

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
  uint64_t ranks = 0;                         ///< that train together
  std::vector<Tensor> tensors = {};           ///< as they are called; their data is not looked at
  std::vector<std::vector<Piece>> plan = {};  ///< by file
  std::vector<Tensor> pieces = {};            ///< this rank's, with their data
};

/// Throws Error; the folder then has the checkpoints that it had.
void WriteAlone(CheckpointFolder& folder, const SaveJob& job);

/// Collective: each rank writes the file of its number. `folder` is rank 0's, NULL elsewhere;
/// `path` is what the others call it.
void WriteTogether(
    ops::Communicator& communicator, CheckpointFolder* folder, const std::string& path,
    const SaveJob& job);

}  // namespace dtrun::runtime

#endif
