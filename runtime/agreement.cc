#include "runtime/agreement.h"

#include <algorithm>
#include <map>
#include <vector>

#include "base/text.h"
#include "dtrun/error.h"

namespace dtrun::runtime {
namespace {

using base::Text;

// 64-bit FNV-1a.
uint64_t DigestOf(const std::string& text) {
  uint64_t digest = 0xcbf29ce484222325u;
  for (const char c : text) digest = (digest ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return digest;
}

std::string FirstDifference(const Listing& listing, const std::vector<std::string>& all) {
  std::vector<std::vector<std::string>> lines;
  size_t longest = 0;
  for (const std::string& text : all) {
    lines.push_back(base::Split(text, '\n'));
    longest = std::max(longest, lines.back().size());
  }
  for (size_t i = 0; i < longest; ++i) {
    std::map<std::string, std::vector<int>> sides;
    for (size_t rank = 0; rank < lines.size(); ++rank)
      sides[i < lines[rank].size() ? lines[rank][i] : "none"].push_back(static_cast<int>(rank));
    if (sides.size() == 1) continue;
    std::vector<std::string> texts;
    for (const auto& [line, ranks] : sides)
      texts.push_back(Text(line, " on ", base::RankList(ranks)));
    const std::string what = i == 0 ? Text("the options of ", listing.owner, " are ")
                                    : Text(listing.item, " ", i - 1, " is ");
    return what + base::Join(texts, ", ");
  }
  return "the listings are equal";
}

}  // namespace

void AgreeOn(ops::Communicator& communicator, const Listing& listing) {
  uint64_t digest = DigestOf(listing.lines);
  std::vector<uint64_t> digests(static_cast<size_t>(communicator.size()));
  communicator.AllGather(Buffer(&digest, 1), Buffer(digests.data(), digests.size()));
  for (const uint64_t other : digests) {
    if (other == digests[0]) continue;
    throw Error(
        ErrorCode::kMismatch,
        Text(
            "the ranks have different ", listing.item, "s in ", listing.owner, ": ",
            FirstDifference(listing, ops::AllGatherBytes(communicator, listing.lines))));
  }
}

}  // namespace dtrun::runtime
