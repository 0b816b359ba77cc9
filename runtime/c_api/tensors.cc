#include "runtime/c_api/tensors.h"

#include <memory>
#include <utility>

#include "dtrun/types.h"
#include "runtime/c_api/handles.h"

struct dtrun_tensor_file {
  dtrun::runtime::TensorFile file;
  std::vector<dtrun_tensor> tensors;
  std::vector<dtrun_metadata> metadata;
};

namespace dtrun::runtime::c_api {

std::vector<Tensor> ReadTensors(const dtrun_tensor* tensors, size_t count) {
  std::vector<Tensor> list;
  if (count > 0) CheckNotNull(tensors, "tensors");
  for (size_t i = 0; i < count; ++i) {
    CheckNotNull(tensors[i].name, "the name of a tensor");
    if (tensors[i].dimensions > 0) CheckNotNull(tensors[i].shape, "the shape of a tensor");
    list.push_back(
        {tensors[i].name, dtrun::detail::FromC(tensors[i].buffer),
         Shape(tensors[i].shape, tensors[i].shape + tensors[i].dimensions)});
  }
  return list;
}

Metadata ReadMetadata(const dtrun_metadata* metadata, size_t count) {
  Metadata read;
  if (count > 0) CheckNotNull(metadata, "metadata");
  for (size_t i = 0; i < count; ++i) {
    CheckNotNull(metadata[i].key, "the key of metadata");
    CheckNotNull(metadata[i].value, "the value of metadata");
    read[metadata[i].key] = metadata[i].value;
  }
  return read;
}

dtrun_tensor_file* NewTensorFile(TensorFile file) {
  auto made = std::make_unique<dtrun_tensor_file>();
  made->file = std::move(file);
  for (const Tensor& tensor : made->file.tensors)
    made->tensors.push_back(
        {tensor.name.c_str(), dtrun::detail::ToC(tensor.buffer), tensor.shape.data(),
         tensor.shape.size()});
  made->metadata = ToC(made->file.metadata);
  return made.release();
}

std::vector<dtrun_metadata> ToC(const Metadata& metadata) {
  std::vector<dtrun_metadata> list;
  for (const auto& [key, value] : metadata) list.push_back({key.c_str(), value.c_str()});
  return list;
}

}  // namespace dtrun::runtime::c_api

using dtrun::runtime::c_api::CheckNotNull;
using dtrun::runtime::c_api::Guard;

dtrun_error* dtrun_save_tensors(
    const char* path, const dtrun_tensor* tensors, size_t tensor_count,
    const dtrun_metadata* metadata, size_t metadata_count) {
  return Guard([&] {
    CheckNotNull(path, "path");
    dtrun::runtime::SaveTensorFile(
        path, dtrun::runtime::c_api::ReadTensors(tensors, tensor_count),
        dtrun::runtime::c_api::ReadMetadata(metadata, metadata_count));
  });
}

dtrun_error* dtrun_load_tensors(const char* path, dtrun_tensor_file** file) {
  return Guard([&] {
    CheckNotNull(path, "path");
    CheckNotNull(file, "file");
    *file = dtrun::runtime::c_api::NewTensorFile(
        dtrun::runtime::ReadTensorFile(path, dtrun::runtime::Links::kFollow));
  });
}

size_t dtrun_tensor_file_count(const dtrun_tensor_file* file) { return file->tensors.size(); }

const dtrun_tensor* dtrun_tensor_file_tensor(const dtrun_tensor_file* file, size_t index) {
  return index < file->tensors.size() ? &file->tensors[index] : nullptr;
}

size_t dtrun_tensor_file_metadata_count(const dtrun_tensor_file* file) {
  return file->metadata.size();
}

const dtrun_metadata* dtrun_tensor_file_metadata(const dtrun_tensor_file* file, size_t index) {
  return index < file->metadata.size() ? &file->metadata[index] : nullptr;
}

void dtrun_tensor_file_destroy(dtrun_tensor_file* file) { delete file; }
