#ifndef DTRUN_RUNTIME_C_API_WIRE_FORMAT_H_
#define DTRUN_RUNTIME_C_API_WIRE_FORMAT_H_

#include <cstdint>
#include <memory>

#include "dtrun/c.h"
#include "runtime/wire_format.h"

namespace dtrun::runtime::c_api {

/// What a program asked for by DTRUN_WIRE_... or by a format of its own (may be null); null for
/// none. Throws Error kInvalidArgument.
std::shared_ptr<WireFormat> ReadWireFormat(int32_t wire, const dtrun_wire_format* format);

}  // namespace dtrun::runtime::c_api

#endif
