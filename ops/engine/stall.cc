#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "base/text.h"
#include "ops/engine/progress_engine.h"

namespace dtrun::ops {
namespace {

using base::FlightOperation;
using base::FlightRecord;

// In a communicator of many ranks, this many answers are enough to find the fault.
constexpr size_t kMostAnswers = 8;

bool IsMessage(const base::Call& call) {
  return base::IsMessage(static_cast<base::CollectiveKind>(call.kind));
}

// False only if the record proves that the rank has not called the operation. There are two proofs:
// all operations of this communicator in the record come before this operation, or the record holds
// every operation that the rank ever called.
bool MayHaveCalled(const FlightRecord& record, const Operation& operation) {
  const std::string name =
      operation.members().name.substr(0, base::FlightEntry::kNameWords * sizeof(uint64_t) - 1);
  bool known = record.operations.size() < base::kFlightEntries;
  for (const FlightOperation& other : record.operations) {
    if (other.communicator != name || IsMessage(other.call)) continue;
    if (other.sequence >= operation.sequence()) return true;
    known = true;
  }
  return !known;
}

std::string Activities(
    const Operation& operation, const std::vector<int>& missing, const PeerRecords& records,
    base::TimePoint now) {
  struct Answer {
    std::string text;
    FlightRecord record;
    std::vector<int> ranks;
  };
  std::vector<Answer> answers;
  for (const int rank : missing) {
    auto record = records(operation.members().world_ranks[static_cast<size_t>(rank)]);
    if (!record) continue;
    const std::string text = base::PresentActivity(*record, now);
    const auto same = std::find_if(
        answers.begin(), answers.end(), [&](const Answer& other) { return other.text == text; });
    if (same != answers.end()) {
      same->ranks.push_back(rank);
    } else if (answers.size() < kMostAnswers) {
      answers.push_back({text, std::move(*record), {rank}});
    }
  }
  std::string text;
  for (const Answer& answer : answers) {
    text += base::Text(
        "; ", operation.members().List(answer.ranks), ' ',
        base::PresentActivity(answer.record, now, answer.ranks.size()));
  }
  return text;
}

}  // namespace

// If the backend cannot see which ranks are missing (MPI), the records tell.
std::vector<int> FindMissing(const Operation& operation, const PeerRecords& records) {
  std::vector<int> missing = operation.Missing();
  if (!missing.empty() || !records || operation.moving() || IsMessage(operation.call())) {
    return missing;
  }
  const std::vector<int>& ranks = operation.members().world_ranks;
  for (size_t r = 0; r < ranks.size(); ++r) {
    const std::optional<FlightRecord> record = records(ranks[r]);
    if (record && !MayHaveCalled(*record, operation)) missing.push_back(static_cast<int>(r));
  }
  return missing;
}

std::string DescribeStall(
    const Operation& operation, const PeerRecords& records, base::TimePoint now) {
  const std::vector<int> missing = FindMissing(operation, records);
  return base::Text(
      operation.DescribeWaitFor(missing),
      records ? Activities(operation, missing, records, now) : "");
}

}  // namespace dtrun::ops
