#ifndef DTRUN_MODELS_LAYERS_INITIAL_WEIGHTS_H_
#define DTRUN_MODELS_LAYERS_INITIAL_WEIGHTS_H_

#include <cstdint>

#include "models/layers/layer.h"

namespace dtrun::models {

/// Writes what parameter `index` of the network starts with (see ParameterSpec): a pure function of
/// its arguments.
void WriteInitialWeights(const ParameterSpec& spec, uint64_t seed, uint32_t index, float* value);

}  // namespace dtrun::models

#endif
