#include "runtime/c_api/wire_format.h"

#include "base/text.h"
#include "dtrun/error.h"
#include "dtrun/types.h"
#include "runtime/c_api/handles.h"

namespace dtrun::runtime::c_api {
namespace {

using base::Text;

// The functions of a program.
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

}  // namespace dtrun::runtime::c_api
