// Each gather runs over all ranks of the parent. A rank that gathers for its group sends "+" and
// its bytes. A rank that has finished sends an empty string.

#include "ops/bootstrap/bootstrap.h"

#include <algorithm>

#include "base/text.h"
#include "dtrun/error.h"

namespace dtrun::ops {

int SubsetBootstrap::rank() const {
  const auto found = std::find(ranks_.begin(), ranks_.end(), parent_.rank());
  return static_cast<int>(found - ranks_.begin());
}

std::vector<std::string> SubsetBootstrap::AllGather(const std::string& bytes) {
  const std::vector<std::string> all = parent_.AllGather("+" + bytes);
  std::vector<std::string> result;
  for (const int rank : ranks_) {
    const std::string& entry = all[static_cast<size_t>(rank)];
    if (entry.empty()) {
      throw Error(
          ErrorCode::kSystem, base::Text("rank ", rank, " could not set up its communicator"));
    }
    result.push_back(entry.substr(1));
  }
  return result;
}

std::unique_ptr<SegmentExchange> SubsetBootstrap::ConnectSegmentExchange(Bootstrap& ranks) {
  return parent_.ConnectSegmentExchange(ranks);
}

void SubsetBootstrap::Finish() {
  for (bool all_done = false; !all_done;) {
    const std::vector<std::string> all = parent_.AllGather("");
    all_done = std::all_of(all.begin(), all.end(), [](const auto& s) { return s.empty(); });
  }
}

}  // namespace dtrun::ops
