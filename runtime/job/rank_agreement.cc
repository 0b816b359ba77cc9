// Every rank sends a digest of its listing. Only if the digests differ, every rank sends its whole
// listing, in which all ranks find the first difference. The result of a call travels as an
// outcome: an error code, then a text.

#include "runtime/job/rank_agreement.h"

#include <algorithm>
#include <exception>
#include <map>
#include <new>
#include <vector>

#include "base/text.h"
#include "dtrun/error.h"

namespace dtrun::runtime {
namespace {

using base::Text;

// The 16 bytes that every rank sends. If all digests are equal, no rank sends its listing.
struct Summary {
  uint64_t digest = 0;
  uint64_t holds = 0;
};

// 64-bit FNV-1a.
uint64_t DigestOf(const std::string& text) {
  uint64_t digest = 0xcbf29ce484222325u;
  for (const char c : text) digest = (digest ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return digest;
}

// Describes the first line that is not equal on all ranks, with the ranks of each version.
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
    const std::string what =
        i == 0 ? Text(listing.owner, "'s options are ") : Text(listing.item, " ", i - 1, " is ");
    return what + base::Join(texts, ", ");
  }
  return "the listings are equal";
}

}  // namespace

bool Agree(ops::Communicator& communicator, const Listing& listing, bool holds) {
  const std::string text = base::Join(listing.lines, "\n");
  Summary mine{.digest = DigestOf(text), .holds = holds};
  std::vector<Summary> all(static_cast<size_t>(communicator.size()));
  communicator.AllGather(
      Buffer(&mine, sizeof mine, DType::kU8),
      Buffer(all.data(), all.size() * sizeof mine, DType::kU8));
  for (const Summary& other : all) {
    if (other.digest == all[0].digest) continue;
    throw Error(
        ErrorCode::kMismatch,
        Text(
            "the ranks have different ", listing.items, ": ",
            FirstDifference(listing, ops::AllGatherBytes(communicator, text))));
  }
  return std::all_of(all.begin(), all.end(), [](const Summary& other) { return other.holds != 0; });
}

namespace {

// Calls `act`. Returns one byte with the code of its error, or 0, then the error's text or the
// result.
std::string OutcomeOf(const std::function<std::string()>& act) {
  const auto failed = [](ErrorCode code, const char* what) {
    return std::string(1, static_cast<char>(code)) + what;
  };
  try {
    return std::string(1, '\0') + act();
  } catch (const Error& error) {
    return failed(error.code(), error.what());
  } catch (const std::bad_alloc&) {
    return failed(ErrorCode::kSystem, "out of memory");
  } catch (const std::exception& error) {
    return failed(ErrorCode::kSystem, error.what());
  }
}

std::string ResultOf(const std::string& outcome, const std::string& who) {
  std::string text = outcome.substr(1);
  if (outcome[0] != '\0') throw Error(static_cast<ErrorCode>(outcome[0]), who + text);
  return text;
}

}  // namespace

std::string OnRootForAll(ops::Communicator& communicator, const std::function<std::string()>& act) {
  const std::string mine = communicator.rank() == 0 ? OutcomeOf(act) : "";
  const auto outcome = ops::BroadcastBytes(communicator, mine.data(), mine.size(), 0);
  return ResultOf({static_cast<const char*>(outcome->data()), outcome->bytes()}, "");
}

std::vector<std::string> OnAllForAll(
    ops::Communicator& communicator, const std::function<std::string()>& act) {
  std::vector<std::string> outcomes = ops::AllGatherBytes(communicator, OutcomeOf(act));
  for (size_t rank = 0; rank < outcomes.size(); ++rank) {
    const std::string who =
        rank == 0 ? "" : communicator.members().List({static_cast<int>(rank)}) + ": ";
    outcomes[rank] = ResultOf(outcomes[rank], who);
  }
  return outcomes;
}

}  // namespace dtrun::runtime
