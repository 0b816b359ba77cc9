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

/// A named array in host memory that someone else owns, row-major.
struct NamedTensor {
  std::string name;  ///< UTF-8; not empty, and not "__metadata__"
  Buffer buffer;
  std::vector<uint64_t> shape;  ///< whose product is buffer.count; empty: a scalar

  NamedTensor(std::string name_in, Buffer buffer_in, std::vector<uint64_t> shape_in)
      : name(std::move(name_in)), buffer(buffer_in), shape(std::move(shape_in)) {}
  /// (count): one dimension.
  NamedTensor(std::string name_in, Buffer buffer_in)
      : NamedTensor(std::move(name_in), buffer_in, {buffer_in.count}) {}
};

/// An optimizer's state, as tensors of one dimension. `prefix` comes before each name.
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

/// Remarks that are saved with tensors, in UTF-8 without '\0'. Keys that begin with "dtrun." are
/// dtrun's own.
using Metadata = std::map<std::string, std::string>;

namespace detail {

/// Valid as long as `tensors`.
inline std::vector<dtrun_tensor> ToC(const std::vector<NamedTensor>& tensors) {
  std::vector<dtrun_tensor> list;
  for (const NamedTensor& tensor : tensors)
    list.push_back(
        {tensor.name.c_str(), ToC(tensor.buffer), tensor.shape.data(), tensor.shape.size()});
  return list;
}

/// Valid as long as `metadata`.
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

/// Writes one file in the safetensors format, by this process alone, with the CRC32C of each tensor
/// in its metadata. It is written under a temporary name, flushed to the disk and then renamed:
/// after any failure `path` is what it was before. Throws kInvalidArgument (a tensor: its name
/// twice, a shape that does not fit its count) or kSystem (the file, and why). Any thread.
inline void SaveTensors(
    const std::string& path, const std::vector<NamedTensor>& tensors,
    const Metadata& metadata = {}) {
  const std::vector<dtrun_tensor> list = detail::ToC(tensors);
  const std::vector<dtrun_metadata> remarks = detail::MetadataToC(metadata);
  detail::Check(
      dtrun_save_tensors(path.c_str(), list.data(), list.size(), remarks.data(), remarks.size()));
}

/// What was read from a safetensors file.
class TensorFile {
 public:
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

  /// In the order of their names. The data belongs to this object, and is aligned to the size of
  /// its elements.
  const std::vector<NamedTensor>& tensors() const { return tensors_; }
  /// Null if there is none of that name.
  const NamedTensor* Find(const std::string& name) const {
    for (const NamedTensor& tensor : tensors_)
      if (tensor.name == name) return &tensor;
    return nullptr;
  }
  const Metadata& metadata() const { return metadata_; }

 private:
  std::unique_ptr<
      dtrun_tensor_file, detail::Destroyer<dtrun_tensor_file, dtrun_tensor_file_destroy>>
      handle_;
  std::vector<NamedTensor> tensors_;
  Metadata metadata_;
};

/// Reads a file in the safetensors format, whoever wrote it, and checks all of it: the rules of the
/// format and, where dtrun has written the file, the checksums. Throws kInvalidArgument (it breaks
/// a rule, or a byte has changed), kUnavailable (it has a type of elements that dtrun has not) or
/// kSystem (it cannot be read). Any thread.
inline TensorFile LoadTensors(const std::string& path) {
  dtrun_tensor_file* file = nullptr;
  detail::Check(dtrun_load_tensors(path.c_str(), &file));
  return TensorFile(file);
}

}  // namespace dtrun

#endif
