#ifndef DTRUN_MODELS_DATA_AUGMENT_H_
#define DTRUN_MODELS_DATA_AUGMENT_H_

#include <cstdint>
#include <vector>

#include "models/data/pipeline.h"

namespace dtrun::models {

/// Functions for Pipeline::Map. The random ones are pure functions of seed, epoch and example.

/// Mirrors an image left to right, with probability 1/2.
MapFunction RandomFlip(uint64_t seed);

/// A piece as large as the image, from a random place of the image with `padding` zeros on each
/// side.
MapFunction RandomCrop(int padding, uint64_t seed);

/// (value - mean) / deviation, by channel; one entry is for all channels. Throws Error
/// kInvalidArgument when they are of different numbers, or a deviation is not above 0.
MapFunction Normalize(std::vector<float> mean, std::vector<float> deviation);

}  // namespace dtrun::models

#endif
