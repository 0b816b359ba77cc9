#ifndef DTRUN_RUNTIME_CHECKPOINT_TENSOR_FILE_H_
#define DTRUN_RUNTIME_CHECKPOINT_TENSOR_FILE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/checkpoint/files.h"
#include "runtime/checkpoint/tensor.h"

namespace dtrun::runtime {

/// What a manifest keeps of a file, to know it again.
struct WrittenFile {
  uint64_t bytes = 0;
  uint32_t header_crc = 0;
};

/// Writes a safetensors file and returns when it is on the disk. The tensors' data is read once.
/// Throws Error kInvalidArgument or kSystem; the file may then be there in part.
WrittenFile WriteTensorFile(
    const std::string& path, const std::vector<Tensor>& tensors, const Metadata& metadata);

/// Tensors and the memory that they lie in.
struct TensorFile {
  std::vector<Tensor> tensors;  ///< by name; aligned to the size of their elements
  Metadata metadata;            ///< without dtrun's own
  uint64_t bytes = 0;
  uint32_t header_crc = 0;  ///< 0: the file has no checksums
  FileBytes file = {};
  std::vector<std::unique_ptr<char[]>> moved = {};  // tensors that were not aligned
};

/// Checks all of the file's bytes: the format, and the checksums if there are any. Throws Error
/// kInvalidArgument or kUnavailable, without a path.
TensorFile ParseTensorFile(FileBytes file);

/// Reads and checks. Throws Error kSystem as well; all errors begin with the path.
TensorFile ReadTensorFile(const std::string& path, Links links);

/// dtrun_save_tensors: under a temporary name, then renamed.
void SaveTensorFile(
    const std::string& path, const std::vector<Tensor>& tensors, const Metadata& metadata);

}  // namespace dtrun::runtime

#endif
