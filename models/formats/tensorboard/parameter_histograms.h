#ifndef DTRUN_MODELS_FORMATS_TENSORBOARD_PARAMETER_HISTOGRAMS_H_
#define DTRUN_MODELS_FORMATS_TENSORBOARD_PARAMETER_HISTOGRAMS_H_

#include <dtrun/optimizer.h>

#include <cstdint>
#include <vector>

#include "models/formats/tensorboard/summary_writer.h"

namespace dtrun::models {

/// Writes how the values of each parameter are distributed, with Keras's tag: its name and
/// "/histogram". The values are copied, those of a large network take a while. Throws Error
/// kInvalidArgument when they are not f32.
void WriteHistograms(const std::vector<Parameter>& parameters, int64_t step, SummaryWriter& writer);

}  // namespace dtrun::models

#endif
