#include "models/random/philox.h"

#include "models/function_clones.h"

namespace dtrun::models {
namespace {

constexpr int kRounds = 10;
constexpr uint32_t kMultiplier0 = 0xD2511F53, kMultiplier1 = 0xCD9E8D57;
constexpr uint32_t kWeyl0 = 0x9E3779B9, kWeyl1 = 0xBB67AE85;

// One round: two products of 32 by 32 bits. The high halves are mixed with the other words and the
// key.
DTRUN_KERNEL_PART void Round(
    uint32_t& c0, uint32_t& c1, uint32_t& c2, uint32_t& c3, uint32_t k0, uint32_t k1) {
  const uint64_t product0 = uint64_t{kMultiplier0} * c0;
  const uint64_t product1 = uint64_t{kMultiplier1} * c2;
  c0 = static_cast<uint32_t>(product1 >> 32) ^ c1 ^ k0;
  c1 = static_cast<uint32_t>(product1);
  c2 = static_cast<uint32_t>(product0 >> 32) ^ c3 ^ k1;
  c3 = static_cast<uint32_t>(product0);
}

}  // namespace

std::array<uint32_t, 4> Philox4x32(const PhiloxCounter& counter, const PhiloxKey& key) {
  std::array<uint32_t, 4> words = counter;
  uint32_t k0 = key[0], k1 = key[1];
  for (int round = 0; round < kRounds; ++round, k0 += kWeyl0, k1 += kWeyl1) {
    Round(words[0], words[1], words[2], words[3], k0, k1);
  }
  return words;
}

DTRUN_KERNEL void PhiloxGroups(
    const PhiloxCounter& first, const PhiloxKey& key, size_t groups, uint32_t* out) {
  for (size_t group = 0; group < groups; ++group, out += kPhiloxGroupWords) {
    uint32_t c0[kPhiloxLanes], c1[kPhiloxLanes], c2[kPhiloxLanes], c3[kPhiloxLanes];
    for (size_t i = 0; i < kPhiloxLanes; ++i) {
      c0[i] = first[0] + static_cast<uint32_t>(group * kPhiloxLanes + i);
      c1[i] = first[1];
      c2[i] = first[2];
      c3[i] = first[3];
    }
    uint32_t k0 = key[0], k1 = key[1];
    for (int round = 0; round < kRounds; ++round, k0 += kWeyl0, k1 += kWeyl1) {
      for (size_t i = 0; i < kPhiloxLanes; ++i) Round(c0[i], c1[i], c2[i], c3[i], k0, k1);
    }
    for (size_t i = 0; i < kPhiloxLanes; ++i) {
      out[i] = c0[i];
      out[kPhiloxLanes + i] = c1[i];
      out[2 * kPhiloxLanes + i] = c2[i];
      out[3 * kPhiloxLanes + i] = c3[i];
    }
  }
}

}  // namespace dtrun::models
