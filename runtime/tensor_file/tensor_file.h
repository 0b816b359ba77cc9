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

/// A named row-major array in host memory. It does not own its data.
struct Tensor {
  std::string name;
  Buffer buffer;
  Shape shape;  ///< its product is buffer.count; empty: a scalar
};

/// The prefix of the metadata keys that dtrun reserves.
constexpr char kOwnPrefix[] = "dtrun.";

/// For example "f32 (3, 3, 1, 32)", or "f32 ()" for a scalar.
std::string Describe(DType dtype, const Shape& shape);

/// Sets `count` to the product of the shape. Returns false if the product overflows.
bool CountOf(const Shape& shape, uint64_t* count);

/// The first 400 bytes of `text`, for an error message: the text may be of any length.
std::string Shortened(const std::string& text);

bool IsUtf8(const std::string& text);

/// Throws Error kInvalidArgument if a tensor cannot be saved or loaded, or kUnavailable if a tensor
/// is in device memory. The error names the tensor.
void CheckTensors(const std::vector<Tensor>& tensors);
/// Throws Error kInvalidArgument if a key or value is not UTF-8, or a key is reserved.
void CheckMetadata(const Metadata& metadata);

/// The facts that a manifest keeps about a file, to recognize the file.
struct WrittenFile {
  uint64_t bytes = 0;
  uint32_t header_crc = 0;
};

/// Writes a safetensors file and returns when the file is on the disk. Reads the data of the
/// tensors once. Throws Error kInvalidArgument or kSystem. After an error, a part of the file may
/// remain.
WrittenFile WriteTensorFile(
    const std::string& path, const std::vector<Tensor>& tensors, const Metadata& metadata);

/// Tensors of a file, and their memory.
struct TensorFile {
  std::vector<Tensor> tensors;  ///< sorted by name; aligned to their element size
  Metadata metadata;            ///< without reserved keys
  uint64_t bytes = 0;
  uint32_t header_crc = 0;  ///< 0: the file has no checksums
  FileBytes file = {};
  std::vector<std::unique_ptr<char[]>> moved = {};  // copies of tensors that were not aligned
};

/// Parses a file and verifies all of its bytes: the format, and the checksums if present. Throws
/// Error kInvalidArgument or kUnavailable. The error does not name a path.
TensorFile ParseTensorFile(FileBytes file);

/// Reads and parses a file. Throws kSystem too. All errors name the path.
TensorFile ReadTensorFile(const std::string& path, Links links);

/// Implements dtrun_save_tensors. Writes under a temporary name, then renames.
void SaveTensorFile(
    const std::string& path, const std::vector<Tensor>& tensors, const Metadata& metadata);

}  // namespace dtrun::runtime

#endif  // DTRUN_RUNTIME_TENSOR_FILE_TENSOR_FILE_H_
