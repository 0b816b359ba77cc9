#ifndef DTRUN_RUNTIME_CHECKPOINT_CHECKPOINT_RECORD_H_
#define DTRUN_RUNTIME_CHECKPOINT_CHECKPOINT_RECORD_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/checkpoint/tensor.h"

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

}  // namespace dtrun::runtime

#endif
