#ifndef DTRUN_RUNTIME_CHECKPOINT_HEADER_READER_H_
#define DTRUN_RUNTIME_CHECKPOINT_HEADER_READER_H_

#include <string_view>

#include "runtime/checkpoint/safetensors_header.h"

namespace dtrun::runtime {

/// What stands in the JSON of a safetensors header; offsets and shapes are not compared with
/// anything yet. Takes memory in proportion to what is well-formed of `text`. Errors as those of
/// ParseHeader.
SafetensorsHeader ReadHeaderJson(std::string_view text);

}  // namespace dtrun::runtime

#endif
