// FlightSummary and FlightJson print the records of the ranks. FindLags compares them. In each
// communicator, every rank has a place: the first collective that it has called and not finished,
// or else the last one that it has finished. The front is the last place where a rank waits. A rank
// that has not called the front's collective is behind.

#include "launcher/report/flight_report.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "base/call.h"
#include "base/json.h"
#include "base/text.h"
#include "dtrun/types.h"

namespace dtrun::launcher {
namespace {

using base::CollectiveKind;
using base::FlightOperation;
using base::FlightRecord;
using base::JsonText;
using base::Text;
using nlohmann::json;

// The report names at most this many different activities, because more would hide the cause.
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
  if (base::OnlyMeets(kind)) return result;
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
            : json{{"rank", rank}, {"missing", "this host has no record of the rank"}});
  }
  // A record may hold any bytes; JSON may not.
  return JsonText(list, 1) + "\n";
}

namespace {

using base::FlightOperation;
using base::FlightRecord;
using base::FlightState;
using base::Text;
using nlohmann::json;

constexpr char kWorld[] = "world";
// A name of this length may have been cut, so several communicators may share it.
constexpr size_t kLongestName = base::FlightEntry::kNameWords * sizeof(uint64_t) - 1;

struct Place {
  int rank = 0;
  uint64_t called = 0;  // sequence number of the last call
  std::optional<FlightOperation> waits, finished;
};

bool IsCollective(const FlightOperation& operation) {
  return !base::IsMessage(static_cast<base::CollectiveKind>(operation.call.kind));
}

// Whether the rank waits in the operation. A failed operation counts if the rank gave up
// waiting.
bool Unfinished(const FlightOperation& operation, const FlightRecord& record) {
  return operation.state < FlightState::kDone ||
         (operation.state == FlightState::kFailed && !record.gave_up.empty());
}

std::map<std::string, Place> PlacesOf(const FlightRecord& record) {
  std::map<std::string, Place> places;
  // The record still holds all operations of the rank. So the rank has a place in the world even if
  // it has called no collective there.
  if (record.operations.size() < base::kFlightEntries) places[kWorld].rank = record.rank;
  for (const FlightOperation& operation : record.operations) {
    if (!IsCollective(operation) || operation.communicator.size() >= kLongestName) continue;
    Place& place = places[operation.communicator];
    // Sequence numbers only rise. Another communicator of the same name begins here, such as those
    // that Init uses.
    if (operation.sequence <= place.called) place = Place();
    place.rank = record.rank;
    place.called = operation.sequence;
    if (operation.state == FlightState::kDone) place.finished = operation;
    if (Unfinished(operation, record) && !place.waits) place.waits = operation;
  }
  // A failed operation before a finished one was not a wait.
  for (auto& [communicator, place] : places)
    if (place.waits && place.waits->state == FlightState::kFailed && place.finished &&
        place.finished->sequence > place.waits->sequence)
      place.waits.reset();
  return places;
}

FlightLag LagOf(const std::string& communicator, const std::vector<Place>& places) {
  FlightLag lag = {.communicator = communicator, .front = {}, .lagging = {}};
  for (const Place& place : places)
    if (place.waits && place.waits->sequence > lag.front.sequence) lag.front = *place.waits;
  for (const Place& place : places) {
    if (place.waits && place.waits->sequence == lag.front.sequence)
      lag.waiting.push_back(place.rank);
    if (place.called < lag.front.sequence)
      lag.lagging.push_back(
          {place.rank, lag.front.sequence - place.called,
           place.waits ? place.waits : place.finished});
  }
  return lag;
}

// "#118, barrier"
std::string ShortName(const FlightOperation& operation) {
  return Text("#", operation.sequence, ", ", base::Describe(operation.call));
}

// The last activity of the ranks, as text that follows "it " or "they ".
std::string Last(const LaggingRank& rank, bool one) {
  if (!rank.last) return Text(one ? "has" : "have", " called none");
  switch (rank.last->state) {
    case FlightState::kDone: return "last finished " + ShortName(*rank.last);
    case FlightState::kFailed: return "failed in " + ShortName(*rank.last);
    case FlightState::kMoving:
      return Text(one ? "moves" : "move", " data in ", ShortName(*rank.last));
    case FlightState::kNone:
    case FlightState::kStarted: break;
  }
  return Text(one ? "waits" : "wait", " in ", ShortName(*rank.last));
}

std::string Behind(
    const std::vector<int>& ranks, const LaggingRank& example, const std::string& communicator) {
  const bool one = ranks.size() == 1;
  return Text(
      base::RankRanges(ranks), one ? " is " : " are ", example.behind,
      example.behind == 1 ? " collective" : " collectives", " behind on ", communicator, ": ",
      one ? "it " : "they ", Last(example, one));
}

}  // namespace

std::vector<FlightLag> FindLags(const std::vector<FlightRecord>& records) {
  std::map<std::string, std::vector<Place>> by_communicator;
  for (const FlightRecord& record : records)
    for (auto& [communicator, place] : PlacesOf(record))
      by_communicator[communicator].push_back(std::move(place));
  std::vector<FlightLag> lags;
  for (const auto& [communicator, places] : by_communicator) {
    FlightLag lag = LagOf(communicator, places);
    if (!lag.lagging.empty()) lags.push_back(std::move(lag));
  }
  return lags;
}

std::string LagText(const FlightLag& lag) {
  std::vector<std::pair<std::string, std::vector<const LaggingRank*>>> groups;
  size_t others = 0;
  for (const LaggingRank& rank : lag.lagging) {
    const std::string answer = Text(rank.behind, ' ', Last(rank, true));
    const auto same = std::find_if(
        groups.begin(), groups.end(), [&](const auto& group) { return group.first == answer; });
    if (same != groups.end()) {
      same->second.push_back(&rank);
    } else if (groups.size() < kMostAnswers) {
      groups.push_back({answer, {&rank}});
    } else {
      ++others;
    }
  }
  std::vector<std::string> parts;
  for (const auto& [answer, members] : groups) {
    std::vector<int> ranks;
    for (const LaggingRank* member : members) ranks.push_back(member->rank);
    parts.push_back(Behind(ranks, *members.front(), lag.communicator));
  }
  if (others > 0) parts.push_back(Text(others, " other ranks are behind too"));
  parts.push_back(Text(
      base::RankRanges(lag.waiting), lag.waiting.size() == 1 ? " waits in " : " wait in ",
      ShortName(lag.front)));
  return base::Join(parts, "; ");
}

json JsonOf(const FlightLag& lag) {
  json lagging = json::array();
  for (const LaggingRank& rank : lag.lagging) {
    lagging.push_back(
        {{"rank", rank.rank},
         {"collectives", rank.behind},
         {"last", rank.last ? json(ShortName(*rank.last)) : json()},
         {"finished", rank.last && rank.last->state == FlightState::kDone}});
  }
  return {
      {"communicator", lag.communicator},
      {"waiting", lag.waiting},
      {"waiting_in", ShortName(lag.front)},
      {"behind", std::move(lagging)},
  };
}

}  // namespace dtrun::launcher
