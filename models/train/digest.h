#ifndef DTRUN_MODELS_TRAIN_DIGEST_H_
#define DTRUN_MODELS_TRAIN_DIGEST_H_

#include <dtrun/context.h>
#include <dtrun/optimizer.h>

#include <cstdint>
#include <string>
#include <vector>

namespace dtrun::models {

/// 64 bits of `bytes` (FNV-1a). `start` is an earlier digest to go on from.
constexpr uint64_t kEmptyDigest = 0xcbf29ce484222325;
uint64_t Digest(const void* data, size_t bytes, uint64_t start = kEmptyDigest);

/// Of all values, in order: equal digests, equal bits.
uint64_t DigestOf(const std::vector<Parameter>& parameters);

/// 16 hexadecimal digits.
std::string ToHex(uint64_t digest);

/// Collective. Throws Error kMismatch, naming the ranks, when digests differ.
void CheckEqualOnAllRanks(uint64_t digest, Communicator& world);

/// What CheckEqualOnAllRanks says about the digests of all ranks; empty when they are equal.
///   {1, 1, 2}  ->  "... rank 0 has 0000000000000001, rank 2 has 0000000000000002"
std::string DifferenceBetween(const std::vector<uint64_t>& digests);

}  // namespace dtrun::models

#endif
