#ifndef DTRUN_MODELS_OPTIM_EXCLUDED_H_
#define DTRUN_MODELS_OPTIM_EXCLUDED_H_

#include <string>
#include <vector>

namespace dtrun::models {

/// The last words of names: "bias" stands for "layer0.conv2d.bias" and for "dense/bias".
using LastWords = std::vector<std::string>;

/// Parameters that are neither decayed nor adapted by layer: biases, and the scale and offset of
/// normalisation. They are few, and their size says nothing about the network's.
inline LastWords BiasesAndNorms() { return {"bias", "gamma", "beta"}; }

/// Whether what follows the last '.' or '/' of `name` is one of `words`.
bool EndsWithOneOf(const std::string& name, const LastWords& words);

}  // namespace dtrun::models

#endif
