#include "launcher/flight_report.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/text.h"
#include "dtrun/types.h"

namespace dtrun::launcher {
namespace {

using base::CollectiveKind;
using base::FlightOperation;
using base::FlightRecord;
using base::Text;
using nlohmann::json;

// More different answers than this say less, not more.
constexpr size_t kMostAnswers = 8;

int64_t Microseconds(int64_t ns, const FlightRecord& record) {
  int64_t unix_ns = 0;
  return __builtin_add_overflow(ns, record.unix_offset_ns, &unix_ns) ? 0 : unix_ns / 1000;
}

json JsonOf(const FlightOperation& operation, const FlightRecord& record) {
  const base::Call& call = operation.call;
  const auto kind = static_cast<CollectiveKind>(call.kind);
  json result = {
      {"communicator", operation.communicator},
      {"sequence", operation.sequence},
      {"kind", base::NameOf(kind)},
      {"state", base::NameOf(operation.state)},
      {"start_us", Microseconds(operation.start_ns, record)},
  };
  if (operation.state >= base::FlightState::kDone) {
    result["end_us"] = Microseconds(operation.end_ns, record);
  }
  if (kind == CollectiveKind::kBarrier) return result;
  result["dtype"] = NameOf(static_cast<DType>(call.dtype));
  result["count"] = call.count;
  if (base::Combines(kind)) result["op"] = NameOf(static_cast<ReduceOp>(call.op));
  if (base::HasRoot(kind)) result["root"] = call.root;
  if (base::IsMessage(kind)) result["peer"] = call.root;
  return result;
}

json JsonOf(const FlightRecord& record) {
  json operations = json::array();
  for (const FlightOperation& operation : record.operations) {
    operations.push_back(JsonOf(operation, record));
  }
  json result = {
      {"rank", record.rank},
      {"host", record.host},
      {"pid", record.pid},
      {"operations", std::move(operations)},
  };
  if (!record.gave_up.empty()) result["gave_up"] = record.gave_up;
  return result;
}

}  // namespace

std::vector<FlightRecord> ReadFlightRecords(const std::string& folder, int ranks) {
  std::vector<FlightRecord> records;
  for (int rank = 0; rank < ranks; ++rank) {
    std::optional<FlightRecord> record = base::ReadFlightFile(base::FlightFile(folder, rank));
    if (record && record->rank == rank) records.push_back(std::move(*record));
  }
  return records;
}

std::string FlightSummary(const std::vector<FlightRecord>& records) {
  std::vector<std::pair<std::string, std::vector<int>>> answers;
  int others = 0;
  for (const FlightRecord& record : records) {
    const std::string answer = base::PastActivity(record);
    const auto same = std::find_if(
        answers.begin(), answers.end(), [&](const auto& other) { return other.first == answer; });
    if (same != answers.end()) {
      same->second.push_back(record.rank);
    } else if (answers.size() < kMostAnswers) {
      answers.push_back({answer, {record.rank}});
    } else {
      ++others;
    }
  }
  const bool anything = std::any_of(records.begin(), records.end(), [](const FlightRecord& record) {
    return !record.operations.empty();
  });
  if (!anything) return "";
  std::vector<std::string> parts;
  for (const auto& [answer, ranks] : answers) {
    parts.push_back(Text(base::RankRanges(ranks), ' ', answer));
  }
  if (others > 0) parts.push_back(Text(others, " other ranks were elsewhere"));
  return base::Join(parts, "; ");
}

std::string FlightJson(const std::vector<FlightRecord>& records, int ranks) {
  json list = json::array();
  for (int rank = 0; rank < ranks; ++rank) {
    const auto record =
        std::find_if(records.begin(), records.end(), [&](const auto& r) { return r.rank == rank; });
    list.push_back(
        record != records.end()
            ? JsonOf(*record)
            : json{{"rank", rank}, {"missing", "there is no record of it on this host"}});
  }
  // A record may hold any bytes; JSON may not.
  return list.dump(1, ' ', false, json::error_handler_t::replace) + "\n";
}

}  // namespace dtrun::launcher
