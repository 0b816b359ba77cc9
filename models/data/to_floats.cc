#include "models/data/to_floats.h"

#include "models/function_clones.h"

namespace dtrun::models {

DTRUN_KERNEL void BytesToFloats(const uint8_t* bytes, size_t count, float* out) {
  for (size_t i = 0; i < count; ++i) out[i] = static_cast<float>(bytes[i]) / 255.0f;
}

}  // namespace dtrun::models
