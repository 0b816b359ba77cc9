// The rules:
//
//  - The end of a rank that has failed begins a new epoch. The ranks that still run see it, give
//    up what they do, and wait in Init for the lost rank, which is started again at once. Ends that
//    follow before all ranks have joined the epoch belong to the same loss and begin further
//    epochs.
//  - A loss uses up one restart, and another one each time that a rank ends once more in it. So a
//    program that gives up when it loses a peer is started again without further cost.
//  - A rank that ends again without having joined is started after a pause, which doubles.
//  - No restart helps against wrong options, missing data, a program that cannot run, or an error
//    that all ranks have agreed on before Shutdown. Such an end is the end of the job.
//  - If another rank has called Shutdown, all ranks have done their work. A rank that is lost
//    afterwards is not needed, except rank 0, which may write results after Shutdown.

#include "launcher/job/recovery.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "base/text.h"
#include "launcher/support/launch_error.h"

namespace dtrun::launcher {
namespace {

using base::Text;

bool IsLost(const ExitRecord& record) {
  return record.time_ns > 0 && (HasFailed(record) || IsGone(record));
}

bool EndedWell(const ExitRecord& record) { return record.time_ns > 0 && !IsLost(record); }

bool ExitedWith(const ExitRecord& record, int code) {
  return record.end == RankEnd::kExited && record.value == code;
}
bool ExitedWith(const ExitRecord& record, ExitCode code) {
  return ExitedWith(record, static_cast<int>(code));
}

// Whether the rank worked before its end: a restart may help.
bool Worked(const ExitRecord& record) {
  constexpr int64_t kLong = 10'000'000'000;
  return record.state.joined || record.time_ns - record.start_ns > kLong;
}

// A program has found its data unusable, as in sysexits.h.
constexpr int kDataUnusable = 66;

// The same would happen again.
bool IsFinal(const ExitRecord& record) {
  return record.end == RankEnd::kNotStarted || ExitedWith(record, ExitCode::kUsage) ||
         ExitedWith(record, kDataUnusable) || ExitedWith(record, ExitCode::kNotExecutable) ||
         ExitedWith(record, ExitCode::kNotFound) ||
         (record.end == RankEnd::kExited && record.in_order);
}

// Shutdown returns only when all ranks have called it.
bool WorkIsDone(const std::vector<ExitRecord>& records) {
  return std::any_of(records.begin(), records.end(), [](const ExitRecord& record) {
    return EndedWell(record) && record.in_order;
  });
}

std::string Seconds(int64_t ns) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f s", static_cast<double>(ns) / 1e9);
  return text;
}

}  // namespace

std::chrono::milliseconds Recovery::Pause(int vain) {
  constexpr std::chrono::milliseconds kFirst{250}, kLongest{30'000};
  if (vain <= 0) return std::chrono::milliseconds(0);
  return std::min(kFirst * (1 << std::min(vain - 1, 10)), kLongest);
}

Recovery::Orders Recovery::Update(const std::vector<ExitRecord>& records, int64_t now_ns) {
  Orders orders;
  if (over_) return orders;
  std::vector<ExitRecord> lost;
  for (const ExitRecord& record : records) {
    have_met_ = have_met_ || record.state.joined;
    if (record.time_ns == 0) ranks_[record.rank].starting_ns = 0;
    if (IsNew(record)) lost.push_back(record);
  }
  if (recovering_ && WorkIsDone(records)) orders.end = EndAfterWork(records, now_ns);
  if (!lost.empty() && !orders.end) orders.end = WhyNotRestarted(lost, records);
  if (!lost.empty() && !orders.end) Lose(lost, now_ns, orders);
  if (!orders.end) orders.end = LeftEarly(records, now_ns);
  if (!orders.end) orders.end = NotStarted(now_ns);
  if (!orders.end && AllDone(records)) orders.end = Verdict{0, "", -1, true};
  if (orders.end) {
    over_ = true;
    return orders;
  }
  RestartDue(now_ns, orders);
  LookForRecovery(records, now_ns, orders);
  return orders;
}

bool Recovery::IsNew(const ExitRecord& record) {
  const Rank& rank = ranks_[record.rank];
  return IsLost(record) && !rank.spared && record.time_ns != rank.handled_ns;
}

std::optional<Verdict> Recovery::NotStarted(int64_t now_ns) const {
  for (const auto& [number, rank] : ranks_)
    if (rank.starting_ns > 0 && now_ns - rank.starting_ns > start_timeout_.count())
      return Verdict{
          static_cast<int>(ExitCode::kUnavailable),
          Text(
              "rank ", number, " on ",
              hosts_[static_cast<size_t>(base::HostOfRank(hosts_, number))].name,
              " had not started again after ",
              std::chrono::duration_cast<std::chrono::seconds>(start_timeout_).count(),
              " s (--start-timeout)")};
  return std::nullopt;
}

std::optional<Verdict> Recovery::WhyNotRestarted(
    const std::vector<ExitRecord>& lost, const std::vector<ExitRecord>& records) {
  for (const ExitRecord& record : lost)
    if (IsFinal(record)) return BlameFor(record, hosts_);
  const bool work_is_done = WorkIsDone(records);
  for (const ExitRecord& record : lost)
    if (work_is_done && record.rank == 0) return BlameFor(record, hosts_);
  const std::string no_more =
      restarts_ == 0 ? "" : Text("; --restarts ", restarts_, " allows no further restart");
  for (const ExitRecord& record : lost) {
    if (work_is_done || TakeRestart(record)) continue;
    Verdict verdict = BlameFor(FirstCause(lost), hosts_);
    verdict.message = EndOf(FirstCause(lost), hosts_) + no_more;
    return verdict;
  }
  for (const ExitRecord& record : lost) ranks_[record.rank].spared = work_is_done;
  return std::nullopt;
}

// The ranks that the last loss has stopped wait in Init, in vain, for those that have ended. Others
// may still write results after Shutdown.
std::optional<Verdict> Recovery::EndAfterWork(
    const std::vector<ExitRecord>& records, int64_t now_ns) const {
  constexpr int64_t kPatience = 5'000'000'000;
  const bool some_work = std::any_of(records.begin(), records.end(), [&](const auto& record) {
    const RankState& state = record.state;
    return record.time_ns == 0 && state.joined && state.init_ns == 0 && state.epoch < epoch_;
  });
  if (some_work && now_ns - losses_.back().lost_ns < kPatience) return std::nullopt;
  const bool first_is_done = std::any_of(records.begin(), records.end(), [](const auto& record) {
    return record.rank == 0 && EndedWell(record);
  });
  const std::vector<int>& lost = losses_.back().ranks;
  const bool lost_first = std::find(lost.begin(), lost.end(), 0) != lost.end();
  return lost_first && !first_is_done ? *blame_ : Verdict{0, "", -1, true};
}

// Returns false if no restart is left.
bool Recovery::TakeRestart(const ExitRecord& record) {
  if (!std::exchange(recovering_, true)) {
    for (auto& [number, rank] : ranks_) rank.ends = 0;
    losses_.emplace_back().lost_ns = record.time_ns;
    cost_ = 0;
  }
  if (++ranks_[record.rank].ends <= cost_) return true;
  ++cost_;
  return ++used_ <= restarts_;
}

void Recovery::Lose(const std::vector<ExitRecord>& lost, int64_t now_ns, Orders& orders) {
  const std::string why = EndOf(FirstCause(lost), hosts_);
  blame_ = BlameFor(FirstCause(lost), hosts_);
  const bool spared = ranks_[lost.front().rank].spared;
  for (const ExitRecord& record : lost) {
    Rank& rank = ranks_[record.rank];
    const bool again = std::exchange(rank.handled_ns, record.time_ns) != 0;
    rank.starting_ns = 0;
    if (spared) continue;
    rank.vain = again && !Worked(record) ? rank.vain + 1 : 0;
    const std::chrono::nanoseconds pause = Pause(rank.vain);
    rank.restart_at_ns = now_ns + pause.count();
    losses_.back().ranks.push_back(record.rank);
    losses_.back().lost_ns = std::min(losses_.back().lost_ns, record.time_ns);
  }
  if (spared) {
    orders.lines.push_back(why + "; all ranks had done their work");
    return;
  }
  losses_.back().epoch = ++epoch_;
  if (losses_.back().why.empty()) {
    losses_.back().why = why;
    orders.lines.push_back(
        Text(why, "; the rank is started again (restart ", used_, " of ", restarts_, ")"));
  }
  orders.epoch = Epoch{epoch_, why};
}

void Recovery::RestartDue(int64_t now_ns, Orders& orders) {
  for (auto& [number, rank] : ranks_) {
    if (rank.restart_at_ns == 0 || now_ns < rank.restart_at_ns) continue;
    rank.restart_at_ns = 0;
    rank.starting_ns = now_ns;
    orders.restart.push_back(number);
  }
}

// A program that does not call Init is back when it runs.
bool Recovery::IsBack(const ExitRecord& record) const {
  const Rank& rank = ranks_.at(record.rank);
  if (rank.restart_at_ns > 0 || rank.starting_ns > 0) return false;
  if (record.time_ns > 0) return EndedWell(record) || rank.spared;
  if (!have_met_) return record.pid > 0;
  return record.state.joined && record.state.epoch == epoch_ && record.state.init_ns == 0;
}

void Recovery::LookForRecovery(
    const std::vector<ExitRecord>& records, int64_t now_ns, Orders& orders) {
  if (!recovering_ || static_cast<int>(records.size()) < size()) return;
  for (const ExitRecord& record : records)
    if (!IsBack(record)) return;
  recovering_ = false;
  Loss& loss = losses_.back();
  loss.recovered_ns = now_ns;
  orders.lines.push_back(
      Text("all ", size(), " ranks go on, ", Seconds(now_ns - loss.lost_ns), " after the loss"));
}

// The other ranks may end in the same moment.
std::optional<Verdict> Recovery::LeftEarly(
    const std::vector<ExitRecord>& records, int64_t now_ns) const {
  constexpr int64_t kUntilSure = 2'000'000'000;
  const bool some_run = std::any_of(
      records.begin(), records.end(), [](const auto& record) { return record.time_ns == 0; });
  for (const ExitRecord& record : records) {
    const bool left = EndedWell(record) && record.state.joined && !record.in_order &&
                      record.value == 0 && now_ns - record.time_ns > kUntilSure;
    if (left && some_run)
      return Verdict{
          static_cast<int>(ExitCode::kLeftEarly),
          Text(EndOf(record, hosts_), " without Shutdown; that ended the job"), record.rank};
  }
  return std::nullopt;
}

bool Recovery::AllDone(const std::vector<ExitRecord>& records) {
  return static_cast<int>(records.size()) == size() &&
         std::all_of(records.begin(), records.end(), [this](const ExitRecord& record) {
           const Rank& rank = ranks_[record.rank];
           return rank.spared || (EndedWell(record) && rank.starting_ns == 0);
         });
}

}  // namespace dtrun::launcher
