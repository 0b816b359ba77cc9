#include "launcher/lost_workers.h"

#include <algorithm>

#include "base/text.h"

namespace dtrun::launcher {

// A failure that ends the job is the servers' own, whatever workers make of it.
bool LostWorkers::ServersRun(const std::vector<ExitRecord>& records) const {
  return std::none_of(records.begin(), records.end(), [&](const ExitRecord& record) {
    return record.rank < servers_ && record.time_ns > 0;
  });
}

// Workers that go on, or have done all there was.
bool LostWorkers::HasOthers(const std::vector<ExitRecord>& records) const {
  const auto failed = std::count_if(records.begin(), records.end(), [&](const ExitRecord& record) {
    return record.rank >= servers_ && HasFailed(record);
  });
  return failed < base::RankCount(hosts_) - servers_;
}

bool LostWorkers::IsSure(const ExitRecord& record, int64_t now_ns) const {
  return servers_ > 0 && record.rank >= servers_ && HasFailed(record) &&
         std::chrono::nanoseconds(now_ns - record.time_ns) >= kUntilSure;
}

std::vector<std::string> LostWorkers::Update(
    const std::vector<ExitRecord>& records, int64_t now_ns) {
  std::vector<std::string> lines;
  if (!ServersRun(records) || !HasOthers(records)) return lines;
  for (const ExitRecord& record : records) {
    if (!IsSure(record, now_ns) || !lost_.insert(record.rank).second) continue;
    lines.push_back(
        base::Text(EndOf(record, hosts_), "; the job goes on without this worker (--ps)"));
  }
  return lines;
}

std::optional<Verdict> LostWorkers::LastOne(
    const std::vector<ExitRecord>& records, int64_t now_ns) const {
  if (servers_ == 0 || !ServersRun(records) || HasOthers(records)) return std::nullopt;
  const ExitRecord* last = nullptr;
  for (const ExitRecord& record : records)
    if (IsSure(record, now_ns) && (last == nullptr || record.time_ns > last->time_ns))
      last = &record;
  if (last == nullptr) return std::nullopt;
  Verdict verdict = BlameFor(*last, hosts_);
  verdict.message = EndOf(*last, hosts_) + "; no worker is left";
  return verdict;
}

std::vector<ExitRecord> LostWorkers::Mark(std::vector<ExitRecord> records) const {
  for (ExitRecord& record : records) record.spared = lost_.count(record.rank) > 0;
  return records;
}

}  // namespace dtrun::launcher
