// A rank waits in Init from the moment at which its agent sees its note. The wait cannot succeed if
// another rank has ended without a failure. The wait also ends when the program's own limit has
// passed: the culprit is then a stopped rank, or else the first rank that has not called Init. A
// rank stopped outside Init has the same limit.
//
// In a job with parameter servers, a lost worker is spared as long as all servers run and another
// worker is left.

#include "launcher/job/rank_watch.h"

#include <algorithm>

#include "base/text.h"
#include "launcher/support/launch_error.h"

namespace dtrun::launcher {
namespace {

using base::Text;

constexpr int64_t kSecond = 1'000'000'000;

bool Ended(const ExitRecord& record) { return record.time_ns > 0; }
bool IsStopped(const ExitRecord& record) { return !Ended(record) && record.state.stopped_ns > 0; }

const ExitRecord* Find(const std::vector<ExitRecord>& records, int rank) {
  for (const ExitRecord& record : records)
    if (record.rank == rank) return &record;
  return nullptr;
}

}  // namespace

std::set<int> RankWatch::AllOf(const std::vector<base::HostSlots>& hosts) {
  std::set<int> ranks;
  for (int rank = 0; rank < base::RankCount(hosts); ++rank) ranks.insert(rank);
  return ranks;
}

std::string RankWatch::Name(int rank) const {
  return Text(
      "rank ", rank, " on ", hosts_[static_cast<size_t>(base::HostOfRank(hosts_, rank))].name);
}

// Why a rank is not in Init, as text that follows its name.
std::string RankWatch::Describe(const ExitRecord* record, int64_t now_ns) const {
  if (record == nullptr || record->pid == 0) return "has not started";
  if (record->end == RankEnd::kExited && Ended(*record))
    return Text("exited with code ", record->value);
  if (Ended(*record)) return "has ended";
  if (IsStopped(*record))
    return Text(
        "has been stopped by a signal for ", (now_ns - record->state.stopped_ns) / kSecond,
        " s (pid ", record->pid, ")");
  if (record->state.init_ns > 0) return "has not finished Init";
  return Text("has not called Init (pid ", record->pid, ")");
}

std::string RankWatch::Waiting(const InitWait& wait, int64_t now_ns) {
  const int64_t shortest_s = (now_ns - wait.last_since_ns) / kSecond;
  const bool together = wait.last_since_ns - wait.since_ns < kSecond;
  return Text(
      base::RankRanges(wait.waiting), wait.waiting.size() == 1 ? " has" : " have",
      " been waiting in Init for ", together ? "" : Text(shortest_s, " to "),
      (now_ns - wait.since_ns) / kSecond, " s");
}

RankWatch::InitWait RankWatch::WaitOf(const std::vector<ExitRecord>& records) const {
  InitWait wait;
  for (const int rank : ranks_) {
    const ExitRecord* record = Find(records, rank);
    if (record == nullptr) {
      wait.absent.push_back(rank);
    } else if (Ended(*record)) {
      if (HasFailed(*record) || IsGone(*record)) continue;  // the engine ends the job
      wait.ended.push_back(rank);
      if (wait.ended_ns == 0 || record->time_ns < wait.ended_ns) wait.ended_ns = record->time_ns;
    } else if (record->state.init_ns > 0) {
      wait.waiting.push_back(rank);
      if (wait.since_ns == 0 || record->state.init_ns < wait.since_ns)
        wait.since_ns = record->state.init_ns;
      wait.last_since_ns = std::max(wait.last_since_ns, record->state.init_ns);
      wait.timeout_s = record->state.timeout_s;
      wait.warning_s = record->state.warning_s;
    } else if (!record->state.joined) {
      wait.absent.push_back(rank);
    }
  }
  return wait;
}

std::vector<std::string> RankWatch::Warnings(
    const std::vector<ExitRecord>& records, int64_t now_ns) {
  std::vector<std::string> lines;
  const InitWait wait = WaitOf(records);
  if (wait.waiting.empty()) warned_of_init_ = false;
  const bool late = !wait.waiting.empty() && wait.timeout_s > 0 &&
                    now_ns - Since(wait.since_ns) >= wait.warning_s * kSecond;
  if (late && !warned_of_init_) {
    warned_of_init_ = true;
    std::string line = "warning: " + Waiting(wait, now_ns);
    for (const int rank : wait.absent)
      line += Text("; ", Name(rank), " ", Describe(Find(records, rank), now_ns));
    lines.push_back(line);
  }
  for (const ExitRecord& record : records) {
    const bool known =
        std::count(warned_of_stopped_.begin(), warned_of_stopped_.end(), record.rank);
    if (!IsStopped(record)) std::erase(warned_of_stopped_, record.rank);
    if (known || !IsStopped(record) || record.state.timeout_s == 0) continue;
    if (now_ns - Since(record.state.stopped_ns) < record.state.warning_s * kSecond) continue;
    warned_of_stopped_.push_back(record.rank);
    lines.push_back(Text("warning: ", Name(record.rank), " ", Describe(&record, now_ns)));
  }
  return lines;
}

std::optional<Verdict> RankWatch::Judge(
    const std::vector<ExitRecord>& records, int64_t now_ns) const {
  if (auto stopped = JudgeStopped(records, now_ns)) return stopped;
  return JudgeInit(records, now_ns);
}

std::optional<Verdict> RankWatch::JudgeStopped(
    const std::vector<ExitRecord>& records, int64_t now_ns) const {
  for (const ExitRecord& record : records) {
    if (!IsStopped(record) || record.state.timeout_s == 0) continue;
    const int64_t longest = record.state.timeout_s * kSecond + kRanksFirst.count() * kSecond;
    if (now_ns - Since(record.state.stopped_ns) < longest) continue;
    return Verdict{
        static_cast<int>(ExitCode::kLeftEarly),
        Text(
            Name(record.rank), " ", Describe(&record, now_ns), " (--stall-timeout ",
            record.state.timeout_s, ")"),
        record.rank};
  }
  return std::nullopt;
}

std::optional<Verdict> RankWatch::JudgeInit(
    const std::vector<ExitRecord>& records, int64_t now_ns) const {
  const InitWait wait = WaitOf(records);
  if (wait.waiting.empty()) return std::nullopt;
  const int code = static_cast<int>(ExitCode::kLeftEarly);
  const int64_t sure = kUntilSure.count() * kSecond;
  if (!wait.ended.empty() && now_ns - Since(std::max(wait.ended_ns, wait.since_ns)) >= sure) {
    const int rank = wait.ended.front();
    return Verdict{
        code,
        Text(
            Name(rank), " ", Describe(Find(records, rank), now_ns), " while ",
            base::RankRanges(wait.waiting), wait.waiting.size() == 1 ? " waits" : " wait",
            " for it in Init"),
        rank};
  }
  if (wait.timeout_s == 0 || now_ns - Since(wait.since_ns) < wait.timeout_s * kSecond)
    return std::nullopt;
  const std::string waiting = Waiting(wait, now_ns) + " (--stall-timeout)";
  const auto stopped = std::find_if(records.begin(), records.end(), IsStopped);
  int rank = stopped != records.end() ? stopped->rank : -1;
  if (rank < 0 && !wait.absent.empty()) rank = wait.absent.front();
  if (rank < 0) return Verdict{code, waiting};
  std::string message = Text(Name(rank), " ", Describe(Find(records, rank), now_ns));
  if (const size_t others = wait.absent.size(); others > 1)
    message += Text(", nor ", others - 1, others == 2 ? " other" : " others");
  return Verdict{code, message + "; " + waiting, rank};
}

bool RankWatch::EngineHangs(const std::vector<ExitRecord>& records, int64_t now_ns) const {
  const auto failed = [](const ExitRecord& record) {
    return !record.spared && (HasFailed(record) || IsGone(record));
  };
  int64_t last_ns = 0, failed_ns = 0;
  size_t ended = 0;
  for (const ExitRecord& record : records) {
    if (!Ended(record)) continue;
    ++ended;
    last_ns = std::max(last_ns, record.time_ns);
    if (failed(record) && (failed_ns == 0 || record.time_ns < failed_ns))
      failed_ns = record.time_ns;
  }
  const int64_t reacts = kEngineReacts.count() * kSecond;
  const bool all = ended == ranks_.size();
  return (all && now_ns - Since(last_ns) >= reacts) ||
         (failed_ns > 0 && now_ns - Since(failed_ns) >= reacts);
}

// ---- Lost workers -------------------------------------------------------------------------------

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
    if (lost_.insert(record->rank).second) lines.push_back(Text(EndOf(*record, hosts_), what));
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

// ---- Pre-empted ranks ---------------------------------------------------------------------------

namespace {

constexpr int kSaved = static_cast<int>(ExitCode::kPreempted);

bool EndedWith(const ExitRecord& record, int code) {
  return record.end == RankEnd::kExited && record.value == code;
}

}  // namespace

bool HaveSaved(const std::vector<ExitRecord>& records, int ranks, bool in_grace) {
  bool saved = in_grace;
  for (const ExitRecord& record : records) {
    if (!EndedWith(record, 0) && !EndedWith(record, kSaved)) return false;
    saved = saved || EndedWith(record, kSaved);
  }
  return saved && static_cast<int>(records.size()) == ranks;
}

std::optional<Verdict> JudgeLate(
    const std::vector<ExitRecord>& records, const std::vector<base::HostSlots>& hosts,
    std::chrono::seconds grace, int64_t now_ns) {
  const ExitRecord* first = nullptr;
  const ExitRecord* late = nullptr;
  for (const ExitRecord& record : records) {
    if (record.time_ns == 0 && late == nullptr) late = &record;
    if (EndedWith(record, kSaved) && (first == nullptr || record.time_ns < first->time_ns))
      first = &record;
  }
  const std::chrono::seconds patience = std::max(grace, std::chrono::seconds(1));
  if (first == nullptr || late == nullptr ||
      std::chrono::nanoseconds(now_ns - first->time_ns) < patience)
    return std::nullopt;
  return Verdict{
      static_cast<int>(ExitCode::kLeftEarly),
      Text(
          "rank ", late->rank, " on ",
          hosts[static_cast<size_t>(base::HostOfRank(hosts, late->rank))].name, " still ran ",
          patience.count(), " s (--grace) after rank ", first->rank,
          " had saved and ended with code ", kSaved),
      late->rank};
}

}  // namespace dtrun::launcher
