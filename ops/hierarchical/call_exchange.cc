// An entry is a word (1: this rank is here) and the bytes of the rank. The entries of a host make
// up its block, in the order of its ranks. The blocks lie in the order of the hosts:
//
//   in       all-gather within the host: its block
//   across   all-gather between the leaders: all blocks
//   out      the leader broadcasts all blocks within its host
//
// If a host is incomplete when its leader's patience is over, the leader sends a block that says
// which ranks are here. Then the others know the missing ranks, and try again at once. That leader
// tries again when its host is complete, or after twice the time.
//
// A follower receives all blocks again and again until they are complete. In between, a leader may
// announce hosts from which nothing has come.

#include <algorithm>
#include <cstring>

#include "ops/collective/host_map.h"
#include "ops/hierarchical/hierarchical_operation.h"
#include "ops/reduce/reduce.h"

namespace dtrun::ops::hierarchical {
namespace {

constexpr uint64_t kHere = 1;
constexpr base::Duration kFirstPatience = std::chrono::milliseconds(200);
constexpr base::Duration kLongestPatience = std::chrono::seconds(20);

Buffer BytesOf(std::string& bytes) { return Buffer(bytes.data(), bytes.size(), DType::kU8); }

}  // namespace

Exchange::Exchange(Group& group, const std::string& mine)
    : group_(group),
      entry_bytes_(sizeof kHere + mine.size()),
      mine_(reinterpret_cast<const char*>(&kHere), sizeof kHere),
      host_block_(entry_bytes_ * static_cast<uint64_t>(group.local_size()), '\0'),
      patient_until_(group.engine.clock().Now() + kFirstPatience),
      patience_(kFirstPatience) {
  mine_ += mine;
  uint64_t offset = 0;
  for (int h = 0; h < group.hosts.host_count(); ++h) {
    host_offsets_.push_back(offset);
    offset += entry_bytes_ * static_cast<uint64_t>(group.hosts.local_size(h));
  }
  host_offsets_.push_back(offset);
  in_ = group_.calls->StartAllGather(BytesOf(mine_), BytesOf(host_block_));
  if (!group_.leads()) StartHandingOut(attempts_.emplace_back());
}

bool Exchange::Advance() {
  while (group_.leads() ? LeaderAdvance() : FollowerAdvance()) {
  }
  const auto handed_out = [](const Attempt& a) { return a.handed_out && a.out.Done(); };
  return complete_ && in_.Done() &&
         std::all_of(announcements_.begin(), announcements_.end(), handed_out) &&
         std::all_of(attempts_.begin(), attempts_.end(), handed_out);
}

bool Exchange::LeaderAdvance() {
  if (complete_) return false;
  if (attempts_.empty() || attempts_.back().crossed) {
    if (in_.Done()) {
      StartCrossing(host_block_);
    } else if (!in_.Missing().empty() && PatienceIsOver()) {
      StartCrossing(WhoIsHere());
    } else {
      return false;
    }
  }
  Attempt& attempt = attempts_.back();
  if (!attempt.across.Done()) return AnnounceSilentHosts(attempt);
  attempt.crossed = true;
  complete_ = IsComplete(attempt);
  StartHandingOut(attempt);
  return true;
}

bool Exchange::PatienceIsOver() {
  if (group_.engine.clock().Now() < patient_until_) return false;
  patience_ = std::min(2 * patience_, kLongestPatience);
  patient_until_ = group_.engine.clock().Now() + patience_;
  return true;
}

bool Exchange::AnnounceSilentHosts(const Attempt& attempt) {
  if (told_ || !PatienceIsOver()) return false;
  const std::vector<int> silent = SilentLeaders(attempt);
  if (silent.empty() || silent == announced_) return false;
  announced_ = silent;
  Attempt& announcement = announcements_.emplace_back();
  announcement.all.resize(host_offsets_.back());
  for (int r = 0; r < group_.hosts.size(); ++r) {
    if (std::find(silent.begin(), silent.end(), r) != silent.end()) continue;
    std::memcpy(announcement.all.data() + OffsetOf(r), &kHere, sizeof kHere);
  }
  StartHandingOut(announcement);
  return true;
}

bool Exchange::FollowerAdvance() {
  if (complete_ || !attempts_.back().out.Done()) return false;
  complete_ = IsComplete(attempts_.back());
  if (!complete_) StartHandingOut(attempts_.emplace_back());
  return true;
}

void Exchange::StartCrossing(std::string block) {
  Attempt& attempt = attempts_.emplace_back();
  attempt.sent = std::move(block);
  attempt.all.resize(host_offsets_.back());
  Counts counts;
  for (size_t h = 0; h + 1 < host_offsets_.size(); ++h) {
    counts.push_back(host_offsets_[h + 1] - host_offsets_[h]);
  }
  attempt.across =
      group_.leaders->StartAllGather(BytesOf(attempt.sent), BytesOf(attempt.all), counts);
}

void Exchange::StartHandingOut(Attempt& attempt) {
  attempt.handed_out = true;
  attempt.all.resize(host_offsets_.back());
  attempt.out = group_.calls->StartBroadcast(BytesOf(attempt.all), 0);
}

bool Exchange::IsComplete(const Attempt& attempt) {
  absent_.clear();
  for (int r = 0; r < group_.hosts.size(); ++r) {
    uint64_t here = 0;
    std::memcpy(&here, attempt.all.data() + OffsetOf(r), sizeof here);
    if (here != kHere) absent_.push_back(r);
  }
  told_ = true;
  return absent_.empty();
}

std::string Exchange::WhoIsHere() const {
  const std::vector<int> missing = in_.Missing();
  std::string block(host_block_.size(), '\0');
  for (int l = 0; l < group_.local_size(); ++l) {
    if (std::find(missing.begin(), missing.end(), l) != missing.end()) continue;
    std::memcpy(block.data() + entry_bytes_ * static_cast<uint64_t>(l), &kHere, sizeof kHere);
  }
  return block;
}

std::vector<int> Exchange::SilentLeaders(const Attempt& attempt) const {
  std::vector<int> leaders;
  for (const int host : attempt.across.Missing()) leaders.push_back(group_.hosts.ranks(host)[0]);
  return leaders;
}

uint64_t Exchange::OffsetOf(int rank) const {
  return host_offsets_[static_cast<size_t>(group_.hosts.host(rank))] +
         entry_bytes_ * static_cast<uint64_t>(group_.hosts.local_rank(rank));
}

const char* Exchange::of(int rank) const {
  return attempts_.back().all.data() + OffsetOf(rank) + sizeof kHere;
}

std::vector<int> Exchange::Missing() const {
  std::vector<int> missing;
  // The state of this host is current. The state of the other hosts is their last word.
  for (const int l : in_.Missing()) {
    missing.push_back(group_.hosts.ranks(group_.host)[static_cast<size_t>(l)]);
  }
  for (const int rank : absent_) {
    if (!group_.on_this_host(rank)) missing.push_back(rank);
  }
  if (!told_ && !attempts_.empty()) {
    for (const int leader : SilentLeaders(attempts_.back())) missing.push_back(leader);
  }
  std::sort(missing.begin(), missing.end());
  return missing;
}

void Exchange::Abandon() {
  in_.Abandon();
  for (Attempt& attempt : attempts_) {
    attempt.across.Abandon();
    attempt.out.Abandon();
  }
  for (Attempt& announcement : announcements_) announcement.out.Abandon();
}

// A record is the Call and a payload of equal length on every rank. The payload has the counts by
// rank if they fit, then the input if it fits behind the counts.

namespace {

// All records together. So few bytes cost only their latency.
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

// The offset of the input in the payload.
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
  if (UsesInput(collective, group.rank) && InputFits(call, size, input.bytes())) {
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
  } else if (!base::OnlyMeets(collective.kind)) {
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

// Combines on the same two levels, in the same order, as the chunks do.
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
