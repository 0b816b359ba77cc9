#include "runtime/c_api/handles.h"

#include <unistd.h>

#include "base/launch_env.h"

namespace {

dtrun::runtime::c_api::ReducerDefaults DefaultsOf(const dtrun::base::Options& options) {
  dtrun::runtime::c_api::ReducerDefaults defaults;
  defaults.bucket_bytes = options.bucket_bytes;
  if (options.autotune)
    defaults.autotune = {options.autotune_log, options.autotune_cache, options.autotune_wire};
  return defaults;
}

}  // namespace

dtrun_context::dtrun_context(
    const std::vector<std::pair<std::string, std::string>>& given,
    const dtrun::ops::MpiHandle& handle)
    : context(dtrun::base::ProcessEnv, given, handle),
      owner{
          .process = {.launch_rank = context.launch_rank()},
          .recorder = &context.recorder(),
          .timeline = &context.timeline(),
          .log = &context.log(),
          .corruptions = context.corruptions(),
          .engine = &context.engine(),
          .gpu_memory_bytes = context.options().gpu_memory_bytes},
      world{owner, &context.world(), nullptr, DefaultsOf(context.options())},
      description(context.Describe()),
      options(dtrun::base::OptionValues(context.options())) {}

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

void CheckProcess(const Process& owner) {
  if (!owner.watch.forked()) return;
  throw Error(
      ErrorCode::kInvalidArgument,
      Text(
          "process ", ::getpid(), " was forked from rank ", owner.launch_rank,
          " after Init; only the process that called Init may use objects of dtrun"));
}

dtrun_error* NewError(
    ErrorCode code, const char* message, const std::vector<int>& ranks,
    const std::string& operation) {
  return new dtrun_error{
      static_cast<int32_t>(code), message, {ranks.begin(), ranks.end()}, operation};
}

void RefuseNull(const char* name) {
  throw Error(ErrorCode::kInvalidArgument, Text(name, " is NULL"));
}

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
        Text(
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

std::vector<dtrun_metadata> ToC(const Metadata& metadata) {
  std::vector<dtrun_metadata> list;
  for (const auto& [key, value] : metadata) list.push_back({key.c_str(), value.c_str()});
  return list;
}

}  // namespace dtrun::runtime::c_api
