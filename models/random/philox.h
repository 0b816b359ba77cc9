#ifndef DTRUN_MODELS_RANDOM_PHILOX_H_
#define DTRUN_MODELS_RANDOM_PHILOX_H_

#include <array>
#include <cstddef>
#include <cstdint>

namespace dtrun::models {

using PhiloxCounter = std::array<uint32_t, 4>;
using PhiloxKey = std::array<uint32_t, 2>;

/// Philox4x32-10, a counter-based generator: four random words that are a pure function of counter
/// and key, so that any rank can make any number of the sequence without making those before it.
/// J. K. Salmon, M. A. Moraes, R. O. Dror, D. E. Shaw, "Parallel random numbers: as easy as 1, 2,
/// 3", SC 2011, section 4.3.
std::array<uint32_t, 4> Philox4x32(const PhiloxCounter& counter, const PhiloxKey& key);

/// Counters that one call of PhiloxGroups works through side by side.
constexpr size_t kPhiloxLanes = 16;
constexpr size_t kPhiloxGroupWords = 4 * kPhiloxLanes;

/// The words of `groups` times 16 consecutive counters, which differ from `first` by the addition
/// of 0, 1, 2, ... to its word 0 (modulo 2^32). Inside a group the words 0 of all counters come
/// first, then their words 1, and so on: word w of the group's counter i is out[16 * w + i].
void PhiloxGroups(const PhiloxCounter& first, const PhiloxKey& key, size_t groups, uint32_t* out);

/// What a random number is for. Numbers of different uses, layers or parameters never coincide,
/// because they come from different counters.
enum class RandomUse : uint32_t {
  kShuffle = 1,
  kInitialWeights = 2,
  kDropout = 3,
  kAugmentation = 4
};

/// The counter's last word for a use and the index of a layer or parameter (below 2^24).
constexpr uint32_t RandomDomain(RandomUse use, uint32_t index) {
  return static_cast<uint32_t>(use) << 24 | index;
}

constexpr PhiloxKey KeyOfSeed(uint64_t seed) {
  return {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
}

}  // namespace dtrun::models

#endif
