#include "runtime/c_api/caller_structs.h"

#include <memory>
#include <utility>

#include "base/text.h"
#include "dtrun/error.h"
#include "dtrun/types.h"
#include "runtime/c_api/handles.h"

namespace dtrun::runtime::c_api {
namespace {

using base::Text;

// A wire format that calls the functions of a program.
class ProgramsFormat : public WireFormat {
 public:
  explicit ProgramsFormat(const dtrun_wire_format& functions)
      : functions_(functions), name_(functions.name) {}
  std::string description() const override {
    return Text("format '", name_, "' of ", NameOf(dtype()));
  }
  DType dtype() const override { return static_cast<DType>(functions_.dtype); }

  uint64_t Count(size_t bucket, const Buffer& gradients) override {
    uint64_t count = 0;
    Check("count", bucket, functions_.count(context(), bucket, detail::ToC(gradients), &count));
    return count;
  }
  void Compress(size_t bucket, const Buffer& gradients, const Buffer& wire) override {
    Check(
        "compress", bucket,
        functions_.compress(context(), bucket, detail::ToC(gradients), detail::ToC(wire)));
  }
  void Decompress(size_t bucket, const Buffer& wire, const Buffer& gradients) override {
    Check(
        "decompress", bucket,
        functions_.decompress(context(), bucket, detail::ToC(wire), detail::ToC(gradients)));
  }

 private:
  void* context() const { return functions_.context; }

  void Check(const char* function, size_t bucket, int32_t result) const {
    if (result == 0) return;
    throw Error(
        ErrorCode::kSystem, Text(
                                "wire format '", name_, "': ", function, " of bucket ", bucket,
                                " returned ", result, "; expected 0"));
  }

  dtrun_wire_format functions_;
  std::string name_;
};

}  // namespace

std::shared_ptr<WireFormat> ReadWireFormat(int32_t wire, const dtrun_wire_format* format) {
  if (wire < DTRUN_WIRE_NONE || wire > DTRUN_WIRE_BF16)
    throw Error(ErrorCode::kInvalidArgument, Text("wire is ", wire, "; expected 0, 1 or 2"));
  if (format == nullptr && wire == DTRUN_WIRE_NONE) return nullptr;
  if (format == nullptr) return CreateCast(wire == DTRUN_WIRE_F16 ? DType::kF16 : DType::kBF16);
  if (wire != DTRUN_WIRE_NONE) {
    throw Error(
        ErrorCode::kInvalidArgument, "a wire and a wire_format are given; expected one of them");
  }
  CheckNotNull(format->name, "the name of the wire format");
  CheckNotNull(reinterpret_cast<const void*>(format->count), "count of the wire format");
  CheckNotNull(reinterpret_cast<const void*>(format->compress), "compress of the wire format");
  CheckNotNull(reinterpret_cast<const void*>(format->decompress), "decompress of the wire format");
  const auto dtype = static_cast<DType>(format->dtype);
  if (SizeOf(dtype) == 0) {
    throw Error(
        ErrorCode::kInvalidArgument,
        Text("wire format '", format->name, "' has a dtype that does not exist"));
  }
  return std::make_shared<ProgramsFormat>(*format);
}

// A program that was compiled with a later version has a longer struct. The other members do not
// change.
void TellStatistics(
    const base::StepTotals& totals, const char* name, dtrun_step_statistics* statistics) {
  if (statistics == nullptr) return;
  constexpr double kSecond = 1e9;  // nanoseconds
  const uint64_t bytes = statistics->struct_bytes;
  if (bytes < sizeof *statistics) {
    throw Error(
        ErrorCode::kInvalidArgument,
        base::Text(
            "struct_bytes of ", name, " is ", bytes, "; expected ", sizeof *statistics,
            ": begin with dtrun_new_step_statistics()"));
  }
  statistics->steps = totals.steps;
  statistics->total_s = static_cast<double>(totals.total_ns) / kSecond;
  statistics->exposed_s = static_cast<double>(totals.exposed_ns) / kSecond;
  statistics->late_s = static_cast<double>(totals.late_ns) / kSecond;
  statistics->bytes = totals.bytes;
  statistics->buckets = totals.buckets;
}

}  // namespace dtrun::runtime::c_api

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
