#ifndef DTRUN_MODELS_DATA_TO_FLOATS_H_
#define DTRUN_MODELS_DATA_TO_FLOATS_H_

#include <cstddef>
#include <cstdint>

namespace dtrun::models {

/// out = bytes / 255
void BytesToFloats(const uint8_t* bytes, size_t count, float* out);

}  // namespace dtrun::models

#endif
