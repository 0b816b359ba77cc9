#include "launcher/job/lost_workers.h"

#include <algorithm>

#include "base/text.h"

namespace dtrun::launcher {

// If a server has ended, failures of workers no longer count.
bool LostWorkers::ServersRun(const std::vector<ExitRecord>& records) const {
  return std::none_of(records.begin(), records.end(), [&](const ExitRecord& record) {
    return record.rank < servers_ && record.time_ns > 0;
  });
}

// Whether at least one worker has not failed.
bool LostWorkers::HasOthers(const std::vector<ExitRecord>& records) const {
  const auto failed = std::count_if(records.begin(), records.end(), [&](const ExitRecord& record) {
    return record.rank >= servers_ && IsLost(record);
  });
  return failed < base::RankCount(hosts_) - servers_;
}

bool LostWorkers::IsSure(const ExitRecord& record, int64_t now_ns) const {
  return servers_ > 0 && record.rank >= servers_ && IsLost(record) && IsOld(record, now_ns);
}

bool LostWorkers::IsOld(const ExitRecord& record, int64_t now_ns) {
  return std::chrono::nanoseconds(now_ns - record.time_ns) >= kUntilSure;
}

bool LostWorkers::CanSpare(size_t host, const std::vector<ExitRecord>& records) const {
  const auto is_there = [&](const ExitRecord& record) {
    return base::HostOfRank(hosts_, record.rank) == static_cast<int>(host);
  };
  if (servers_ == 0 || base::HostOfRank(hosts_, servers_ - 1) >= static_cast<int>(host))
    return false;
  std::vector<ExitRecord> without;
  for (ExitRecord record : records) {
    if (is_there(record) && !IsLost(record)) record.end = RankEnd::kHostLost;
    without.push_back(record);
  }
  const bool all_started = static_cast<int>(records.size()) == base::RankCount(hosts_);
  return all_started && ServersRun(records) && HasOthers(without);
}

std::vector<std::string> LostWorkers::Update(
    const std::vector<ExitRecord>& records, int64_t now_ns) {
  std::vector<const ExitRecord*> sure;
  if (!ServersRun(records) || !HasOthers(records)) return {};
  for (const ExitRecord& record : records)
    if (IsSure(record, now_ns)) sure.push_back(&record);
  return Lose(sure, "; the job goes on without this worker (--ps)");
}

std::vector<std::string> LostWorkers::AtEnd(const std::vector<ExitRecord>& records) {
  std::vector<const ExitRecord*> failed;
  int servers = 0;
  for (const ExitRecord& record : records) {
    if (record.rank >= servers_ && IsLost(record)) failed.push_back(&record);
    if (record.rank < servers_ && record.end == RankEnd::kExited && !HasFailed(record)) ++servers;
  }
  if (servers_ == 0 || servers < servers_) return {};
  return Lose(failed, "; the job went on without this worker (--ps)");
}

std::vector<std::string> LostWorkers::Lose(
    const std::vector<const ExitRecord*>& records, const char* what) {
  std::vector<std::string> lines;
  for (const ExitRecord* record : records)
    if (lost_.insert(record->rank).second)
      lines.push_back(base::Text(EndOf(*record, hosts_), what));
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

// The engine may end the other ranks before dtrun hears of the first failure. A rank ended by
// SIGTERM is therefore a candidate only if no other cause appears within kUntilSure.
std::optional<Verdict> LostWorkers::LostServer(
    const std::vector<ExitRecord>& records, int64_t now_ns) const {
  std::vector<ExitRecord> failed;
  for (const ExitRecord& record : records)
    if (IsLost(record) && lost_.count(record.rank) == 0 &&
        (!EndedForAnother(record) || IsOld(record, now_ns)))
      failed.push_back(record);
  const bool server = std::any_of(failed.begin(), failed.end(), [&](const ExitRecord& record) {
    return record.rank < servers_;
  });
  if (!server) return std::nullopt;
  return BlameFor(FirstCause(failed), hosts_);
}

bool LostWorkers::AllDone(const std::vector<ExitRecord>& records) const {
  const auto is_done = [&](const ExitRecord& record) {
    const bool well = record.end == RankEnd::kExited && !HasFailed(record);
    return well || (record.rank >= servers_ && IsLost(record));
  };
  return servers_ > 0 && static_cast<int>(records.size()) == base::RankCount(hosts_) &&
         std::all_of(records.begin(), records.end(), is_done);
}

std::vector<ExitRecord> LostWorkers::Mark(std::vector<ExitRecord> records) const {
  for (ExitRecord& record : records) record.spared = lost_.count(record.rank) > 0;
  return records;
}

}  // namespace dtrun::launcher
