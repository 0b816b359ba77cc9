// A record is the Call and a payload of as many bytes on every rank: the counts by rank if they fit
// in, then the input if it fits in behind them.

#include "ops/hierarchical/call_records.h"

#include <algorithm>
#include <cstring>

#include "ops/hierarchical/arithmetic.h"
#include "ops/hierarchical/exchange.h"
#include "ops/reduce/reduce.h"

namespace dtrun::ops::hierarchical {
namespace {

// All records together: little enough to cost no more than their latency.
constexpr uint64_t kAllRecordsBytes = 16 << 10;
constexpr uint64_t kMostPayloadBytes = 1024;

uint64_t PayloadBytes(int size) {
  const uint64_t record = kAllRecordsBytes / static_cast<uint64_t>(size);
  if (record <= sizeof(Call)) return 0;
  return std::min(kMostPayloadBytes, (record - sizeof(Call)) / 8 * 8);
}

uint64_t TableBytes(const Call& call, int size) {
  const int tables = ((call.tables & Call::kSends) != 0) + ((call.tables & Call::kReceives) != 0);
  return sizeof(uint64_t) * static_cast<uint64_t>(size * tables);
}

bool TablesFit(const Call& call, int size) { return TableBytes(call, size) <= PayloadBytes(size); }

// Where the input begins in the payload.
uint64_t InputOffset(const Call& call, int size) {
  return TablesFit(call, size) ? TableBytes(call, size) : 0;
}

bool InputFits(const Call& call, int size, uint64_t bytes) {
  return bytes <= PayloadBytes(size) - InputOffset(call, size);
}

void Append(std::string& text, const void* data, uint64_t bytes) {
  if (bytes > 0) text.append(static_cast<const char*>(data), bytes);
}

void AppendTables(std::string& text, const Collective& collective) {
  Append(text, collective.send_counts.data(), 8 * collective.send_counts.size());
  Append(text, collective.receive_counts.data(), 8 * collective.receive_counts.size());
}

bool BringsInput(const Collective& collective, int rank) {
  switch (collective.kind) {
    case CollectiveKind::kBarrier: return false;
    case CollectiveKind::kBroadcast:
    case CollectiveKind::kScatter: return rank == collective.root;
    default: return true;
  }
}

void PointToTables(Called& called, const char* tables, int size) {
  const auto* counts = reinterpret_cast<const uint64_t*>(tables);
  if ((called.call->tables & Call::kSends) != 0) {
    called.sends = counts;
    counts += size;
  }
  if ((called.call->tables & Call::kReceives) != 0) called.receives = counts;
}

}  // namespace

std::string MakeRecord(const Group& group, const Collective& collective) {
  const int size = group.hosts.size();
  const Call call = CallOf(collective, group.rank);
  std::string record;
  Append(record, &call, sizeof call);
  if (TablesFit(call, size)) AppendTables(record, collective);
  const Buffer& input = collective.input;
  if (BringsInput(collective, group.rank) && InputFits(call, size, input.bytes())) {
    Append(record, input.data, input.bytes());
  }
  record.resize(sizeof call + PayloadBytes(size));
  return record;
}

std::string MakeTables(const Group& group, const Collective& collective) {
  std::string tables;
  AppendTables(tables, collective);
  tables.resize(2 * sizeof(uint64_t) * static_cast<uint64_t>(group.hosts.size()));
  return tables;
}

CallRecords::CallRecords(const Group& group, const Exchange& records) : group_(group) {
  const int size = group.hosts.size();
  for (int r = 0; r < size; ++r) {
    records_.push_back(records.of(r));
    Called called{.call = reinterpret_cast<const Call*>(records_.back())};
    if (TablesFit(*called.call, size)) {
      PointToTables(called, records_.back() + sizeof(Call), size);
    }
    called_.push_back(called);
  }
}

bool CallRecords::NeedTables() const {
  return std::any_of(called_.begin(), called_.end(), [&](const Called& called) {
    return !TablesFit(*called.call, group_.hosts.size());
  });
}

void CallRecords::AddTables(const Exchange& tables) {
  for (int r = 0; r < group_.hosts.size(); ++r) {
    PointToTables(called_[static_cast<size_t>(r)], tables.of(r), group_.hosts.size());
  }
}

const char* CallRecords::Input(int rank) const {
  const Call& call = *called_[static_cast<size_t>(rank)].call;
  return records_[static_cast<size_t>(rank)] + sizeof call + InputOffset(call, group_.hosts.size());
}

bool CallRecords::AllInline() const {
  const Calls all = calls();
  for (int r = 0; r < group_.hosts.size(); ++r) {
    const Call& call = *called_[static_cast<size_t>(r)].call;
    const uint64_t bytes = all.InputCount(r) * SizeOf(static_cast<DType>(call.dtype));
    if (!InputFits(call, group_.hosts.size(), bytes)) return false;
  }
  return true;
}

void CallRecords::FinishInline(const Collective& collective) const {
  if (Combines(collective.kind)) {
    Combine(collective);
  } else if (collective.kind != CollectiveKind::kBarrier) {
    Move(collective);
  }
}

void CallRecords::Move(const Collective& collective) const {
  const Calls all = calls();
  const bool is_source_of_broadcast =
      collective.kind == CollectiveKind::kBroadcast && group_.rank == collective.root;
  if (is_source_of_broadcast) return;
  for (int r = 0; r < group_.hosts.size(); ++r) {
    const Range from = all.InInput(r, group_.rank), to = all.InOutput(r, group_.rank);
    if (from.count == 0) continue;
    const uint64_t element = SizeOf(collective.output.dtype);
    std::memcpy(
        static_cast<char*>(collective.output.data) + to.begin * element,
        Input(r) + from.begin * element, from.count * element);
  }
}

// The same two levels, in the same order, as on the long way.
void CallRecords::Combine(const Collective& collective) const {
  const int rank = group_.rank, size = group_.hosts.size();
  if (collective.kind == CollectiveKind::kReduce && rank != collective.root) return;
  const Range part = collective.kind == CollectiveKind::kReduceScatter
                         ? calls().Share(rank)
                         : Range{0, collective.input.count};
  if (part.count == 0) return;
  const DType dtype = collective.input.dtype;
  const uint64_t bytes = part.count * SizeOf(dtype), offset = part.begin * SizeOf(dtype);
  std::vector<std::string> of_hosts;
  for (int h = 0; h < group_.hosts.host_count(); ++h) {
    std::vector<const void*> inputs;
    for (const int r : group_.hosts.ranks(h)) inputs.push_back(Input(r) + offset);
    void* output = of_hosts.emplace_back(bytes, '\0').data();
    Reduce(
        inputs.data(), static_cast<int>(inputs.size()), &output, 1, part.count, dtype,
        WithinHost(collective));
  }
  std::vector<const void*> inputs;
  for (const std::string& host : of_hosts) inputs.push_back(host.data());
  void* output = collective.output.data;
  Reduce(
      inputs.data(), static_cast<int>(inputs.size()), &output, 1, part.count, dtype,
      BetweenHosts(collective, size));
}

}  // namespace dtrun::ops::hierarchical
