#ifndef DTRUN_RUNTIME_C_API_SIZED_STRUCT_H_
#define DTRUN_RUNTIME_C_API_SIZED_STRUCT_H_

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "base/text.h"
#include "dtrun/error.h"
#include "runtime/c_api/handles.h"

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

}  // namespace dtrun::runtime::c_api

#endif
