#include "models/layers/initial_weights.h"

#include <algorithm>
#include <cmath>

#include "models/random/philox.h"

namespace dtrun::models {
namespace {

// Uniform in (-1, 1), symmetric, from the upper 24 bits: all that a float can tell apart.
float SymmetricUniform(uint32_t word) {
  return (static_cast<float>(word >> 8) + 0.5f) * 0x1p-23f - 1.0f;
}

// Normal numbers by pairs: G. E. P. Box, M. E. Muller, Annals of Mathematical Statistics 29 (1958).
void WriteNormal(double deviation, PhiloxKey key, uint32_t domain, size_t count, float* value) {
  PhiloxCounter counter{0, 0, 0, domain};
  for (size_t i = 0; i < count; i += 2, ++counter[0]) {
    const auto words = Philox4x32(counter, key);
    const double radius = deviation * std::sqrt(-2 * std::log((words[0] + 0.5) * 0x1p-32));
    const double angle = 2 * M_PI * (words[1] * 0x1p-32);
    value[i] = static_cast<float>(radius * std::cos(angle));
    if (i + 1 < count) value[i + 1] = static_cast<float>(radius * std::sin(angle));
  }
}

}  // namespace

size_t ParameterSpec::count() const {
  size_t product = 1;
  for (int dim : shape) product *= size_t(dim);
  return product;
}

void WriteInitialWeights(const ParameterSpec& spec, uint64_t seed, uint32_t index, float* value) {
  const size_t count = spec.count();
  if (spec.fan_in == 0) {
    std::fill_n(value, count, spec.value);
    return;
  }
  if (spec.initializer == Initializer::kHeNormal) {
    return WriteNormal(
        std::sqrt(2.0 / spec.fan_out), KeyOfSeed(seed),
        RandomDomain(RandomUse::kInitialWeights, index), count, value);
  }
  const float limit = std::sqrt(6.0f / static_cast<float>(spec.fan_in + spec.fan_out));
  PhiloxCounter counter{0, 0, 0, RandomDomain(RandomUse::kInitialWeights, index)};
  for (size_t i = 0; i < count; i += 4, ++counter[0]) {
    const auto words = Philox4x32(counter, KeyOfSeed(seed));
    for (size_t j = i; j < std::min(i + 4, count); ++j)
      value[j] = limit * SymmetricUniform(words[j - i]);
  }
}

}  // namespace dtrun::models
