#ifndef DTRUN_TENSORS_H_
#define DTRUN_TENSORS_H_

#include <dtrun/c.h>
#include <dtrun/error.h>
#include <dtrun/optimizer.h>
#include <dtrun/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace dtrun {

/// A named array in host memory, row-major. It does not own the memory.
struct NamedTensor {
  std::string name;             ///< UTF-8; not empty, and not "__metadata__"
  Buffer buffer;                ///< the elements
  std::vector<uint64_t> shape;  ///< buffer.count is their product; empty: a scalar

  /// A tensor of any number of dimensions.
  NamedTensor(std::string name_in, Buffer buffer_in, std::vector<uint64_t> shape_in)
      : name(std::move(name_in)), buffer(buffer_in), shape(std::move(shape_in)) {}
  /// A tensor of one dimension.
  NamedTensor(std::string name_in, Buffer buffer_in)
      : NamedTensor(std::move(name_in), buffer_in, {buffer_in.count}) {}
};

/// An optimizer's state as tensors of one dimension. `prefix` comes before each name.
///
///   TensorsOf(optimizer.state(), "optimizer/")
inline std::vector<NamedTensor> TensorsOf(
    const std::vector<NamedBuffer>& buffers, const std::string& prefix = "") {
  std::vector<NamedTensor> tensors;
  for (const NamedBuffer& each : buffers) tensors.emplace_back(prefix + each.name, each.buffer);
  return tensors;
}

/// The values of parameters, as tensors of one dimension.
inline std::vector<NamedTensor> TensorsOf(
    const std::vector<Parameter>& parameters, const std::string& prefix = "") {
  std::vector<NamedTensor> tensors;
  for (const Parameter& each : parameters) tensors.emplace_back(prefix + each.name, each.value);
  return tensors;
}

/// Annotations that are saved with tensors, in UTF-8 without '\0'. Keys that begin with "dtrun."
/// are reserved for dtrun.
using Metadata = std::map<std::string, std::string>;

namespace detail {

/// The result is valid as long as `tensors`.
inline std::vector<dtrun_tensor> ToC(const std::vector<NamedTensor>& tensors) {
  std::vector<dtrun_tensor> list;
  for (const NamedTensor& tensor : tensors)
    list.push_back(
        {tensor.name.c_str(), ToC(tensor.buffer), tensor.shape.data(), tensor.shape.size()});
  return list;
}

/// The result is valid as long as `metadata`.
inline std::vector<dtrun_metadata> MetadataToC(const Metadata& metadata) {
  std::vector<dtrun_metadata> list;
  for (const auto& [key, value] : metadata) {
    if (key.find('\0') != std::string::npos || value.find('\0') != std::string::npos)
      throw Error(
          ErrorCode::kInvalidArgument, "metadata '" + key + "' has a zero byte; expected text");
    list.push_back({key.c_str(), value.c_str()});
  }
  return list;
}

}  // namespace detail

/// Writes one file in the safetensors format, from this process alone, with the CRC32C of each
/// tensor in its metadata. The data goes to a temporary file, is flushed to the disk, and is then
/// renamed. After a failure `path` is unchanged. Throws kInvalidArgument (a tensor is wrong: a name
/// that occurs twice, a shape that does not match the count) or kSystem (the file, and why). Any
/// thread.
inline void SaveTensors(
    const std::string& path, const std::vector<NamedTensor>& tensors,
    const Metadata& metadata = {}) {
  const std::vector<dtrun_tensor> list = detail::ToC(tensors);
  const std::vector<dtrun_metadata> remarks = detail::MetadataToC(metadata);
  detail::Check(
      dtrun_save_tensors(path.c_str(), list.data(), list.size(), remarks.data(), remarks.size()));
}

/// The content of a safetensors file.
class TensorFile {
 public:
  /// Takes ownership of `handle`.
  explicit TensorFile(dtrun_tensor_file* handle) : handle_(handle) {
    for (size_t i = 0; i < dtrun_tensor_file_count(handle); ++i) {
      const dtrun_tensor& tensor = *dtrun_tensor_file_tensor(handle, i);
      std::vector<uint64_t> shape(tensor.shape, tensor.shape + tensor.dimensions);
      tensors_.emplace_back(tensor.name, detail::FromC(tensor.buffer), std::move(shape));
    }
    for (size_t i = 0; i < dtrun_tensor_file_metadata_count(handle); ++i) {
      const dtrun_metadata& remark = *dtrun_tensor_file_metadata(handle, i);
      metadata_[remark.key] = remark.value;
    }
  }

  /// The tensors in the order of their names. This object owns their data, which is aligned to the
  /// element size.
  const std::vector<NamedTensor>& tensors() const { return tensors_; }
  /// Null if there is no tensor of that name.
  const NamedTensor* Find(const std::string& name) const {
    for (const NamedTensor& tensor : tensors_)
      if (tensor.name == name) return &tensor;
    return nullptr;
  }
  /// The annotations of the file, without dtrun's own keys.
  const Metadata& metadata() const { return metadata_; }

 private:
  std::unique_ptr<
      dtrun_tensor_file, detail::Destroyer<dtrun_tensor_file, dtrun_tensor_file_destroy>>
      handle_;
  std::vector<NamedTensor> tensors_;
  Metadata metadata_;
};

/// Reads a safetensors file of any program and checks all bytes: the rules of the format and, if
/// dtrun wrote the file, the checksums. Any thread.
///
/// Throws kInvalidArgument (the file breaks a rule, or a byte has changed), kUnavailable (an
/// element type that dtrun lacks) or kSystem (the file cannot be read).
inline TensorFile LoadTensors(const std::string& path) {
  dtrun_tensor_file* file = nullptr;
  detail::Check(dtrun_load_tensors(path.c_str(), &file));
  return TensorFile(file);
}

}  // namespace dtrun

#endif
