#ifndef DTRUN_RUNTIME_TENSOR_FILE_TENSOR_FILE_H_
#define DTRUN_RUNTIME_TENSOR_FILE_TENSOR_FILE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "dtrun/types.h"
#include "runtime/tensor_file/file_system.h"

namespace dtrun::runtime {

using Shape = std::vector<uint64_t>;
using Metadata = std::map<std::string, std::string>;

/// A named array in host memory that someone else owns, row-major.
struct Tensor {
  std::string name;
  Buffer buffer;
  Shape shape;  ///< whose product is buffer.count; empty: a scalar
};

/// Of metadata that is dtrun's own: keys begin with it.
constexpr char kOwnPrefix[] = "dtrun.";

/// "f32 (3, 3, 1, 32)"; of a scalar "f32 ()".
std::string Describe(DType dtype, const Shape& shape);

/// The product; false when it does not fit.
bool CountOf(const Shape& shape, uint64_t* count);

/// What is shown of a text that may be anything: its beginning.
std::string Shortened(const std::string& text);

bool IsUtf8(const std::string& text);

/// Throws Error kInvalidArgument (kUnavailable: device memory) that names the first tensor which
/// cannot be written or filled.
void CheckTensors(const std::vector<Tensor>& tensors);
/// Likewise for what a caller wants to be saved.
void CheckMetadata(const Metadata& metadata);

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

#endif  // DTRUN_RUNTIME_TENSOR_FILE_TENSOR_FILE_H_
