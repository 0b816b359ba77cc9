#include "ops/communicator_bootstrap.h"

#include <algorithm>

#include "dtrun/error.h"

namespace dtrun::ops {

std::vector<std::string> CommunicatorBootstrap::AllGather(const std::string& bytes) {
  const auto size = static_cast<size_t>(communicator_.size());
  uint64_t length = bytes.size();
  std::vector<uint64_t> lengths(size);
  communicator_.AllGather(Buffer(&length, 1), Buffer(lengths.data(), size));

  const uint64_t longest = *std::max_element(lengths.begin(), lengths.end());
  std::vector<uint8_t> mine(longest), all(longest * size);
  std::copy(bytes.begin(), bytes.end(), mine.begin());
  communicator_.AllGather(Buffer(mine.data(), longest), Buffer(all.data(), all.size()));

  std::vector<std::string> result;
  for (size_t r = 0; r < size; ++r) {
    const auto begin = all.begin() + static_cast<ptrdiff_t>(r * longest);
    result.emplace_back(begin, begin + static_cast<ptrdiff_t>(lengths[r]));
  }
  return result;
}

std::unique_ptr<SegmentExchange> CommunicatorBootstrap::ConnectSegmentExchange() {
  if (exchange_ == nullptr) {
    throw Error(
        ErrorCode::kUnavailable, "these ranks do not share a host, so they cannot share memory");
  }
  return exchange_->ConnectAnother(*this);
}

}  // namespace dtrun::ops
