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

/// Options of the caller's, who may have been compiled with a later version: its struct is then
/// longer, and what this library does not know of has to be zero.
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

/// What a program asked for by DTRUN_WIRE_... or by a format of its own (may be null); null for
/// none. Throws Error kInvalidArgument.
std::shared_ptr<WireFormat> ReadWireFormat(int32_t wire, const dtrun_wire_format* format);

/// Fills in what the caller has begun with dtrun_new_step_statistics; nothing where that is null.
/// `name` is the parameter's, for errors.
void TellStatistics(
    const base::StepTotals& totals, const char* name, dtrun_step_statistics* statistics);

std::vector<Tensor> ReadTensors(const dtrun_tensor* tensors, size_t count);
Metadata ReadMetadata(const dtrun_metadata* metadata, size_t count);

/// Tensors for the caller, with the memory that they lie in.
dtrun_tensor_file* NewTensorFile(TensorFile file);

/// As C sees it; valid as long as `metadata`.
std::vector<dtrun_metadata> ToC(const Metadata& metadata);

}  // namespace dtrun::runtime::c_api

#endif  // DTRUN_RUNTIME_C_API_CALLER_STRUCTS_H_
