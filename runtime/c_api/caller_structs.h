#ifndef DTRUN_RUNTIME_C_API_CALLER_STRUCTS_H_
#define DTRUN_RUNTIME_C_API_CALLER_STRUCTS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "base/flight_record.h"
#include "base/text.h"
#include "dtrun/c.h"
#include "dtrun/error.h"
#include "runtime/c_api/handles.h"
#include "runtime/reducer/wire_compression.h"
#include "runtime/tensor_file/tensor_file.h"

namespace dtrun::runtime::c_api {

/// Copies the caller's options. A caller that was compiled with a later version has a longer
/// struct. The members that this library does not know must then be zero. Throws Error kUnavailable
/// if they are not, or kInvalidArgument if the struct is too short.
template <typename Options>
Options ReadSized(const Options* options, const char* how_to_begin) {
  CheckNotNull(options, "options");
  Options known;
  const uint64_t bytes = options->struct_bytes;
  if (bytes < sizeof known) {
    throw Error(
        ErrorCode::kInvalidArgument, base::Text(
                                         "struct_bytes of the options is ", bytes, "; expected ",
                                         sizeof known, ": begin with ", how_to_begin));
  }
  const char* first = reinterpret_cast<const char*>(options);
  if (std::any_of(first + sizeof known, first + bytes, [](char byte) { return byte != 0; })) {
    throw Error(
        ErrorCode::kUnavailable,
        "the program sets an option that this version of libdtrun does not know");
  }
  std::memcpy(&known, options, sizeof known);
  return known;
}

/// The wire format that the program selects, by DTRUN_WIRE_... or by its own `format` (may be
/// null). Returns null if the program selects no format. Throws Error kInvalidArgument.
std::shared_ptr<WireFormat> ReadWireFormat(int32_t wire, const dtrun_wire_format* format);

/// Fills in a struct that the caller has created with dtrun_new_step_statistics. Null is allowed.
/// `name` is the name of the parameter, for errors.
void TellStatistics(
    const base::StepTotals& totals, const char* name, dtrun_step_statistics* statistics);

std::vector<Tensor> ReadTensors(const dtrun_tensor* tensors, size_t count);
Metadata ReadMetadata(const dtrun_metadata* metadata, size_t count);

/// A new handle for the tensors of a file and their memory.
dtrun_tensor_file* NewTensorFile(TensorFile file);

/// Views of the metadata for C. They are valid as long as `metadata`.
std::vector<dtrun_metadata> ToC(const Metadata& metadata);

}  // namespace dtrun::runtime::c_api

#endif  // DTRUN_RUNTIME_C_API_CALLER_STRUCTS_H_
