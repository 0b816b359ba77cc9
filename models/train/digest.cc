#include "models/train/digest.h"

#include <dtrun/error.h>

#include <iomanip>
#include <sstream>

#include "models/message_text.h"

namespace dtrun::models {

// G. Fowler, L. C. Noll, K.-P. Vo: FNV-1a.
uint64_t Digest(const void* data, size_t bytes, uint64_t start) {
  constexpr uint64_t kPrime = 0x100000001b3;
  const auto* byte = static_cast<const uint8_t*>(data);
  uint64_t digest = start;
  for (size_t i = 0; i < bytes; ++i) digest = (digest ^ byte[i]) * kPrime;
  return digest;
}

uint64_t DigestOf(const std::vector<Parameter>& parameters) {
  uint64_t digest = kEmptyDigest;
  for (const Parameter& parameter : parameters)
    digest = Digest(parameter.value.data, parameter.value.bytes(), digest);
  return digest;
}

std::string ToHex(uint64_t digest) {
  std::ostringstream text;
  text << std::hex << std::setw(16) << std::setfill('0') << digest;
  return text.str();
}

std::string DifferenceBetween(const std::vector<uint64_t>& digests) {
  std::string others;
  for (size_t rank = 1; rank < digests.size(); ++rank) {
    if (digests[rank] != digests[0]) others += Text(", rank ", rank, " has ", ToHex(digests[rank]));
  }
  if (others.empty()) return "";
  return Text(
      "the ranks hold different parameters: by digest, rank 0 has ", ToHex(digests[0]), others);
}

void CheckEqualOnAllRanks(uint64_t digest, Communicator& world) {
  std::vector<uint64_t> digests(static_cast<size_t>(world.size()));
  world.AllGather(Buffer(&digest, 1), Buffer(digests.data(), digests.size()));
  const std::string difference = DifferenceBetween(digests);
  if (!difference.empty()) throw Error(ErrorCode::kMismatch, difference);
}

}  // namespace dtrun::models
