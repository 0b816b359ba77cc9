#ifndef DTRUN_MODELS_RANDOM_PHILOX_H_
#define DTRUN_MODELS_RANDOM_PHILOX_H_

#include <array>
#include <cstddef>
#include <cstdint>

namespace dtrun::models {

using PhiloxCounter = std::array<uint32_t, 4>;
using PhiloxKey = std::array<uint32_t, 2>;

/// Philox4x32-10, a counter-based generator: four random words that are a pure function of counter
/// and key. Any rank can compute any number of the sequence without the numbers before it. J. K.
/// Salmon, M. A. Moraes, R. O. Dror, D. E. Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC
/// 2011, section 4.3.
std::array<uint32_t, 4> Philox4x32(const PhiloxCounter& counter, const PhiloxKey& key);

/// Number of counters that PhiloxGroups computes side by side.
constexpr size_t kPhiloxLanes = 16;
constexpr size_t kPhiloxGroupWords = 4 * kPhiloxLanes;

/// Writes the words of `groups` * 16 consecutive counters. They are `first` with 0, 1, 2, ... added
/// to its word 0 (modulo 2^32). Within a group, words 0 of all counters come first, then words 1,
/// and so on: word w of counter i of the group is out[16 * w + i].
void PhiloxGroups(const PhiloxCounter& first, const PhiloxKey& key, size_t groups, uint32_t* out);

/// The purpose of a random number. Numbers of different uses, layers or parameters never coincide,
/// because they come from different counters.
enum class RandomUse : uint32_t {
  kShuffle = 1,
  kInitialWeights = 2,
  kDropout = 3,
  kAugmentation = 4
};

/// The last word of the counter, for a use and the index of a layer or parameter (below 2^24).
constexpr uint32_t RandomDomain(RandomUse use, uint32_t index) {
  return static_cast<uint32_t>(use) << 24 | index;
}

constexpr PhiloxKey KeyOfSeed(uint64_t seed) {
  return {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
}

}  // namespace dtrun::models

#endif
