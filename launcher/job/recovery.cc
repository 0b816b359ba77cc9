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
//
// If the job has a minimum of ranks (--min-np), it may change its size:
//
//  - A lost rank that has no host, or no restart left, leaves the job if enough ranks remain.
//    Otherwise the job is paused: it waits for hosts, in an epoch without members.
//  - A process on a host that has come is started while the job goes on. When all such processes
//    wait in Init, a new epoch has them as members. One that fails before leaves the job as it is.
//
// If the engine cannot replace a rank (all_together), the same rules hold, with these differences:
//
//  - A loss ends all ranks. Their ends are no losses. When the last one has ended, all are started
//    again. Each such start uses up a restart.
//  - The engine ends with its ranks, and its own end is the end of the job.
//  - If ranks are lost after Shutdown while rank 0 still runs, the engine ends rank 0 too. So all
//    ranks are started again, to do the end of their work once more.

#include "launcher/job/recovery.h"

#include <signal.h>

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

// The engine ends the other ranks of its host with SIGTERM when it finds one lost.
bool EndedByEngine(const ExitRecord& record) {
  return record.end == RankEnd::kSignaled && record.value == SIGTERM && !record.alone;
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

bool FirstIsDone(const std::vector<ExitRecord>& records) {
  return std::any_of(records.begin(), records.end(), [](const ExitRecord& record) {
    return record.rank == 0 && EndedWell(record);
  });
}

std::string InWords(int ranks) { return Text(ranks, ranks == 1 ? " rank" : " ranks"); }

std::string Seconds(int64_t ns) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f s", static_cast<double>(ns) / 1e9);
  return text;
}

// How long an agent takes to tell of a process that the engine has started before its end.
constexpr std::chrono::milliseconds kUntilHeard{500};

int64_t Nanoseconds(std::chrono::nanoseconds time) { return time.count(); }

// The step in which a rank was that had completed others.
std::string InStep(const ExitRecord& record) {
  return record.step > 0 ? Text(" in step ", record.step + 1) : "";
}

}  // namespace

std::chrono::milliseconds Recovery::Pause(int vain) {
  constexpr std::chrono::milliseconds kFirst{250}, kLongest{30'000};
  if (vain <= 0) return std::chrono::milliseconds(0);
  return std::min(kFirst * (1 << std::min(vain - 1, 10)), kLongest);
}

std::vector<ExitRecord> Recovery::OfMembers(const std::vector<ExitRecord>& records) const {
  std::vector<ExitRecord> members = records;
  std::erase_if(
      members, [this](const ExitRecord& record) { return !places_.IsMember(record.rank); });
  return members;
}

std::vector<ExitRecord> Recovery::Mark(std::vector<ExitRecord> records) const {
  for (ExitRecord& record : records)
    record.spared = record.spared || !places_.IsMember(record.rank);
  return records;
}

Recovery::Orders Recovery::Update(const std::vector<ExitRecord>& records, int64_t now_ns) {
  Orders orders;
  if (over_) return orders;
  std::vector<ExitRecord> members = OfMembers(records), lost;
  for (const ExitRecord& record : records) {
    have_met_ = have_met_ || record.state.joined;
    // A short program may have ended before this call.
    Rank& rank = ranks_[record.rank];
    const bool has_started = rank.starting_ns > 0 && record.start_ns >= rank.starting_ns;
    if (record.time_ns == 0 || has_started) rank.starting_ns = 0;
  }
  for (const ExitRecord& record : members)
    if (IsNew(record)) lost.push_back(record);
  if (limits_.all_together && AwaitsCause(lost, now_ns)) return orders;
  if (limits_.all_together) orders.end = LeftBefore(lost, members);
  if (limits_.all_together) lost = Causes(lost);
  if (recovering_ && !limits_.all_together && WorkIsDone(members))
    orders.end = EndAfterWork(members, now_ns);
  if (!lost.empty() && !orders.end) orders.end = WhyNotRestarted(lost, members);
  if (!lost.empty() && !orders.end) Lose(lost, now_ns, orders);
  members = OfMembers(records);
  if (!orders.end) orders.end = LeftEarly(members, now_ns);
  if (!orders.end) orders.end = NotStarted(now_ns);
  if (!orders.end) orders.end = WaitedTooLong(now_ns);
  if (!orders.end && AllDone(members)) orders.end = Verdict{0, "", -1, true};
  if (orders.end) {
    over_ = true;
    return orders;
  }
  Resume(now_ns, orders);
  LoseJoiners(records, now_ns, orders);
  StartJoiners(records, now_ns);
  TakeJoiners(records, now_ns, orders);
  if (limits_.all_together)
    StartAll(records, now_ns, orders);
  else
    RestartDue(now_ns, orders);
  LookForRecovery(OfMembers(records), now_ns, orders);
  return orders;
}

// The end of a process that had just started may come after the order to start its rank again.
bool Recovery::IsNew(const ExitRecord& record) {
  const Rank& rank = ranks_[record.rank];
  const bool is_old = limits_.all_together && record.end != RankEnd::kHostLost &&
                      record.start_ns < rank.starting_ns;
  if (is_old) return false;
  return IsLost(record) && !rank.spared && record.time_ns != rank.handled_ns;
}

// ---- All ranks together -------------------------------------------------------------------------

// The engine also kills the other wrappers as soon as it finds one gone. The end of a killed
// wrapper may be noticed later than those of its victims.
ExitRecord Recovery::FirstOf(const std::vector<ExitRecord>& lost) const {
  const ExitRecord first = FirstCause(lost);
  if (!IsGone(first) && !EndedByEngine(first)) return first;
  std::vector<ExitRecord> others;
  for (const ExitRecord& record : lost) {
    if (record.rank == suspect_) return record;
    if (!EndedByEngine(record)) others.push_back(record);
  }
  return others.empty() ? first : FirstCause(others);
}

// The end that the engine has reacted to may come later, from another host.
bool Recovery::AwaitsCause(const std::vector<ExitRecord>& lost, int64_t now_ns) const {
  constexpr int64_t kPatience = 500'000'000;
  if (lost.empty() || is_stopping_) return false;
  const ExitRecord first = FirstCause(lost);
  if (now_ns - first.time_ns >= kPatience) return false;
  if (EndedByEngine(first)) return true;
  const bool has_come = std::any_of(
      lost.begin(), lost.end(), [this](const auto& record) { return record.rank == suspect_; });
  return places_.IsMember(suspect_) && !has_come && IsGone(first);
}

// The ends that are losses. The engine ends the other ranks.
std::vector<ExitRecord> Recovery::Causes(const std::vector<ExitRecord>& lost) {
  if (lost.empty()) return {};
  std::vector<ExitRecord> causes;
  for (const ExitRecord& record : lost)
    if (record.end == RankEnd::kHostLost) causes.push_back(record);
  if (causes.empty() && !is_stopping_) causes.push_back(FirstOf(lost));
  for (const ExitRecord& record : lost)
    if (record.end != RankEnd::kHostLost && (causes.empty() || record.rank != causes[0].rank))
      ranks_[record.rank].handled_ns = record.time_ns;
  return causes;
}

// A rank that ends without Shutdown is a mistake of the program. The engine then ends the others.
std::optional<Verdict> Recovery::LeftBefore(
    const std::vector<ExitRecord>& lost, const std::vector<ExitRecord>& members) const {
  if (lost.empty() || is_stopping_) return std::nullopt;
  const int64_t lost_ns = FirstOf(lost).time_ns;
  for (const ExitRecord& record : members) {
    const bool left = EndedWell(record) && record.state.joined && !record.in_order;
    if (left && record.value == 0 && record.time_ns <= lost_ns)
      return Verdict{
          static_cast<int>(ExitCode::kLeftEarly),
          Text(EndOf(record, places_.Names()), " without Shutdown; that ended the job"),
          record.rank};
  }
  return std::nullopt;
}

void Recovery::StopAll(int64_t now_ns, int64_t start_at_ns, Orders& orders) {
  if (!std::exchange(is_stopping_, true)) stopped_ns_ = now_ns;
  orders.stop = true;
  for (const int member : places_.members()) ranks_[member].restart_at_ns = start_at_ns;
}

// Whether dtrun has not heard of a rank in this start: its process may run already.
bool Recovery::SomeMayStart(const std::vector<ExitRecord>& records) const {
  return std::any_of(places_.members().begin(), places_.members().end(), [&](int member) {
    const auto rank = ranks_.find(member);
    const bool is_known = std::any_of(
        records.begin(), records.end(), [&](const auto& record) { return record.rank == member; });
    return !is_known || (rank != ranks_.end() && rank->second.starting_ns > 0);
  });
}

void Recovery::StartAll(const std::vector<ExitRecord>& records, int64_t now_ns, Orders& orders) {
  if (!is_stopping_ || is_paused() || !places_.Homeless().empty()) return;
  for (const ExitRecord& record : records)
    if (record.pid > 0 && record.time_ns == 0) return;
  for (const int member : places_.members())
    if (now_ns < ranks_[member].restart_at_ns) return;
  if (SomeMayStart(records) && now_ns - stopped_ns_ < Nanoseconds(kUntilHeard)) return;
  is_stopping_ = false;
  has_started_again_ = true;
  suspect_ = -1;
  cost_ = 0;
  for (auto& [number, rank] : ranks_) rank.ends = 0;
  int64_t done = -1, kept = -1;
  for (const ExitRecord& record : records) {
    done = std::max(done, record.step);
    kept = std::max(kept, record.kept_step);
  }
  Loss& loss = losses_.back();
  if (done > 0 || kept > 0)  // otherwise, nothing is known of steps
    loss.steps_lost = std::max<int64_t>(loss.steps_lost, 0) +
                      std::max<int64_t>(done - std::max<int64_t>(kept, 0), 0);
  for (const int member : places_.members()) {
    ranks_[member].restart_at_ns = 0;
    ranks_[member].starting_ns = now_ns;
    orders.restart.push_back(member);
  }
}

// ---- Losses -------------------------------------------------------------------------------------

std::string Recovery::RankOnHost(int rank) const {
  const std::vector<base::HostSlots> names = places_.Names();
  return Text(
      "rank ", rank, " on ", names[static_cast<size_t>(base::HostOfRank(names, rank))].name);
}

std::optional<Verdict> Recovery::NotStarted(int64_t now_ns) const {
  for (const auto& [number, rank] : ranks_)
    if (places_.IsMember(number) && IsLate(rank.starting_ns, now_ns))
      return Verdict{
          static_cast<int>(ExitCode::kUnavailable),
          Text(
              RankOnHost(number), " had not started again after ", StartTimeout(),
              " s (--start-timeout)")};
  return std::nullopt;
}

bool Recovery::IsLate(int64_t since_ns, int64_t now_ns) const {
  return since_ns > 0 && now_ns - since_ns > limits_.start_timeout.count();
}

int64_t Recovery::StartTimeout() const {
  return std::chrono::duration_cast<std::chrono::seconds>(limits_.start_timeout).count();
}

std::optional<Verdict> Recovery::WhyNotRestarted(
    const std::vector<ExitRecord>& lost, const std::vector<ExitRecord>& members) {
  for (const ExitRecord& record : lost)
    if (IsFinal(record)) return BlameFor(record, places_.Names());
  const bool work_is_done = WorkIsDone(members) && (!limits_.all_together || FirstIsDone(members));
  for (const ExitRecord& record : lost) {
    if (work_is_done && record.rank == 0) return BlameFor(record, places_.Names());
    if (!work_is_done) TakeRestart(record);
    ranks_[record.rank].spared = work_is_done;
  }
  const std::set<int> leavers = Leavers(lost);
  const bool may_wait = HasRestarts() && limits_.min_ranks > 0;
  if (work_is_done || leavers.empty() || MayLeave(leavers) || may_wait) return std::nullopt;
  for (const ExitRecord& record : lost) losses_.back().ranks.push_back(record.rank);
  if (losses_.back().why.empty()) losses_.back().why = EndOf(FirstCause(lost), places_.Names());
  Verdict verdict = BlameFor(FirstCause(lost), places_.Names());
  verdict.message = EndOf(FirstCause(lost), places_.Names());
  if (limits_.restarts > 0)
    verdict.message += Text("; --restarts ", limits_.restarts, " allows no further restart");
  return verdict;
}

// The ranks that the last loss has stopped wait in Init, in vain, for those that have ended. Others
// may still write results after Shutdown.
std::optional<Verdict> Recovery::EndAfterWork(
    const std::vector<ExitRecord>& members, int64_t now_ns) const {
  constexpr int64_t kPatience = 5'000'000'000;
  const bool some_work = std::any_of(members.begin(), members.end(), [&](const auto& record) {
    const RankState& state = record.state;
    return record.time_ns == 0 && state.joined && state.init_ns == 0 && state.epoch < epoch_;
  });
  if (some_work && now_ns - losses_.back().lost_ns < kPatience) return std::nullopt;
  const std::vector<int>& lost = losses_.back().ranks;
  const bool lost_first = std::find(lost.begin(), lost.end(), 0) != lost.end();
  return lost_first && !FirstIsDone(members) ? *blame_ : Verdict{0, "", -1, true};
}

void Recovery::TakeRestart(const ExitRecord& record) {
  if (!std::exchange(recovering_, true)) {
    for (auto& [number, rank] : ranks_) rank.ends = 0;
    losses_.emplace_back().lost_ns = record.time_ns;
    cost_ = 0;
  }
  const bool is_same = limits_.all_together && is_stopping_ && cost_ > 0;
  if (is_same || ++ranks_[record.rank].ends <= cost_) return;
  ++cost_;
  ++used_;
}

// The ranks that cannot be started again: no host, or no restart left.
std::set<int> Recovery::Leavers(const std::vector<ExitRecord>& lost) const {
  std::set<int> leavers = places_.Homeless();
  if (!HasRestarts())
    for (const ExitRecord& record : lost) leavers.insert(record.rank);
  return leavers;
}

bool Recovery::MayLeave(const std::set<int>& leavers) const {
  return limits_.min_ranks > 0 && ranks() - static_cast<int>(leavers.size()) >= limits_.min_ranks;
}

void Recovery::Leave(const std::set<int>& leavers) {
  std::set<int> members = places_.members();
  for (const int number : leavers) {
    members.erase(number);
    ranks_[number].restart_at_ns = ranks_[number].starting_ns = 0;
    ranks_[number].host = Membership::kNoHost;
    losses_.back().left.push_back(number);
    places_.Retire(number);
  }
  places_.SetMembers(std::move(members));
}

void Recovery::Begin(const std::string& why, Orders& orders) {
  for (const int member : places_.members()) places_.Settle(member);
  losses_.back().epoch = ++epoch_;
  orders.epoch = Epoch{epoch_, {why, losses_.back().ranks}, is_paused()};
}

void Recovery::Lose(const std::vector<ExitRecord>& lost, int64_t now_ns, Orders& orders) {
  const std::string why = EndOf(FirstCause(lost), places_.Names());
  blame_ = BlameFor(FirstCause(lost), places_.Names());
  const bool spared = ranks_[lost.front().rank].spared;
  for (const ExitRecord& record : lost) {
    Rank& rank = ranks_[record.rank];
    const bool again = std::exchange(rank.handled_ns, record.time_ns) != 0;
    rank.starting_ns = 0;
    if (spared) continue;
    rank.vain = again && !Worked(record) ? rank.vain + 1 : 0;
    if (limits_.all_together)
      rank.vain = vain_ = has_started_again_ && !Worked(record) ? vain_ + 1 : 0;
    rank.restart_at_ns = now_ns + Nanoseconds(Pause(rank.vain));
  }
  if (spared) {
    orders.lines.push_back(why + "; all ranks had done their work");
    return;
  }
  if (limits_.all_together) StopAll(now_ns, now_ns + Nanoseconds(Pause(vain_)), orders);
  Loss& loss = losses_.back();
  const bool is_first = loss.ranks.empty();
  for (const ExitRecord& record : lost) {
    loss.ranks.push_back(record.rank);
    loss.lost_ns = std::min(loss.lost_ns, record.time_ns);
  }
  if (loss.why.empty()) loss.why = why;
  const std::set<int> leavers = Leavers(lost);
  const bool leaves = !leavers.empty() && MayLeave(leavers);
  if (leaves) Leave(leavers);
  const bool pauses = !leavers.empty() && !leaves && !is_paused();
  if (pauses) paused_ns_ = now_ns;
  if (leaves)
    orders.lines.push_back(Text(why, "; the job goes on with ", InWords(ranks())));
  else if (pauses)
    orders.lines.push_back(Text(
        why, "; ", InWords(ranks() - static_cast<int>(leavers.size())), " left of at least ",
        limits_.min_ranks, " (--min-np): the job waits for hosts"));
  else if (is_first || limits_.all_together)
    orders.lines.push_back(Text(
        why, limits_.all_together ? InStep(FirstCause(lost)) : "", "; the ",
        limits_.all_together ? "job" : "rank", " is started again (restart ", used_, " of ",
        limits_.restarts, ")"));
  Begin(why, orders);
}

// ---- Hosts that come ----------------------------------------------------------------------------

void Recovery::Resume(int64_t now_ns, Orders& orders) {
  if (!is_paused()) return;
  const std::set<int> homeless = places_.Homeless();
  const int ready = ranks() - static_cast<int>(homeless.size());
  if (ready < limits_.min_ranks) return;
  paused_ns_ = 0;
  Leave(homeless);
  for (const int member : places_.members())
    if (ranks_[member].restart_at_ns > 0) ranks_[member].restart_at_ns = now_ns;
  orders.lines.push_back(Text("hosts have come; the job goes on with ", InWords(ranks())));
  Begin(losses_.back().why, orders);
}

std::optional<Verdict> Recovery::WaitedTooLong(int64_t now_ns) const {
  if (!is_paused() || now_ns - paused_ns_ < limits_.elastic_timeout.count()) return std::nullopt;
  const int left = ranks() - static_cast<int>(places_.Homeless().size());
  return Verdict{
      static_cast<int>(ExitCode::kUnavailable),
      Text(
          losses_.back().why, "; ", InWords(left), left == 1 ? " was" : " were",
          " left, expected at least ", limits_.min_ranks, " (--min-np), and no host came within ",
          std::chrono::duration_cast<std::chrono::seconds>(limits_.elastic_timeout).count(),
          " s (--elastic-timeout)")};
}

// A number may have a record of an earlier process, which counts no more.
void Recovery::StartJoiners(const std::vector<ExitRecord>& records, int64_t now_ns) {
  for (const int number : places_.Joiners()) {
    Rank& rank = ranks_[number];
    if (rank.host == places_.HostOf(number)) continue;
    places_.Settle(number);
    rank = {.restart_at_ns = now_ns, .host = places_.HostOf(number), .invited_ns = now_ns};
    for (const ExitRecord& record : records)
      if (record.rank == number) rank.handled_ns = record.time_ns;
  }
}

void Recovery::LoseJoiners(const std::vector<ExitRecord>& records, int64_t now_ns, Orders& orders) {
  const auto drop = [&](int number, const std::string& why) {
    orders.lines.push_back(why + "; the job goes on without it");
    places_.Retire(number);
    ranks_[number].host = Membership::kNoHost;
    ranks_[number].restart_at_ns = ranks_[number].starting_ns = 0;
  };
  for (const int number : places_.Joiners()) {
    Rank& rank = ranks_[number];
    if (rank.host != places_.HostOf(number)) continue;  // not started yet
    const auto record = std::find_if(
        records.begin(), records.end(), [&](const auto& each) { return each.rank == number; });
    const bool runs = record != records.end() && record->time_ns == 0;
    if (record != records.end() && IsNew(*record)) {
      rank.handled_ns = record->time_ns;
      drop(number, EndOf(*record, places_.Names()) + " before it had joined the job");
    } else if (
        IsLate(rank.starting_ns, now_ns) ||
        (runs && have_met_ && record->state.init_ns == 0 && IsLate(rank.invited_ns, now_ns))) {
      drop(
          number, Text(
                      RankOnHost(number), " had not joined the job after ", StartTimeout(),
                      " s (--start-timeout)"));
    }
  }
}

// In a program that does not call Init, a process is ready when it runs.
bool Recovery::IsReady(const ExitRecord& record) const {
  const Rank& rank = ranks_.at(record.rank);
  return rank.restart_at_ns == 0 && rank.starting_ns == 0 && record.time_ns == 0 &&
         record.pid > 0 && (!have_met_ || record.state.init_ns > 0);
}

void Recovery::TakeJoiners(const std::vector<ExitRecord>& records, int64_t now_ns, Orders& orders) {
  const std::set<int> joiners = places_.Joiners();
  if (joiners.empty() || recovering_ || is_paused()) return;
  const bool some_ended = std::any_of(records.begin(), records.end(), [this](const auto& record) {
    return places_.IsMember(record.rank) && record.time_ns > 0;
  });
  if (limits_.all_together && (some_ended || !have_met_)) return;
  const auto ready = std::count_if(records.begin(), records.end(), [&](const auto& record) {
    return joiners.contains(record.rank) && IsReady(record);
  });
  if (!limits_.all_together && ready < static_cast<int64_t>(joiners.size())) return;
  recovering_ = true;
  for (auto& [number, rank] : ranks_) rank.ends = 0;
  cost_ = 0;
  Loss& gain = losses_.emplace_back();
  gain.lost_ns = now_ns;
  gain.joined = {joiners.begin(), joiners.end()};
  const int first = gain.joined.front();
  gain.why = Text(
      joiners.size() == 1 ? RankOnHost(first)
                          : Text(base::RankRanges(gain.joined), " on ", HostsOf(joiners)),
      joiners.size() == 1 ? " joins" : " join");
  std::set<int> members = places_.members();
  members.insert(joiners.begin(), joiners.end());
  places_.SetMembers(std::move(members));
  orders.lines.push_back(Text(gain.why, "; the job goes on with ", InWords(ranks())));
  if (limits_.all_together) StopAll(now_ns, now_ns, orders);
  Begin(gain.why, orders);
}

std::string Recovery::HostsOf(const std::set<int>& numbers) const {
  std::vector<std::string> names;
  for (const base::HostSlots& host : places_.LayoutOf(numbers).hosts) names.push_back(host.name);
  return base::Join(names, ", ");
}

// ---- Restarts -----------------------------------------------------------------------------------

void Recovery::RestartDue(int64_t now_ns, Orders& orders) {
  for (auto& [number, rank] : ranks_) {
    if (rank.restart_at_ns == 0 || now_ns < rank.restart_at_ns || !places_.HasHost(number))
      continue;
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
    const std::vector<ExitRecord>& members, int64_t now_ns, Orders& orders) {
  if (!recovering_ || is_stopping_ || is_paused() || static_cast<int>(members.size()) < ranks())
    return;
  for (const ExitRecord& record : members)
    if (!IsBack(record)) return;
  recovering_ = false;
  Loss& loss = losses_.back();
  loss.recovered_ns = now_ns;
  const std::string steps = loss.steps_lost < 0 ? ""
                            : loss.steps_lost == 1
                                ? "; 1 step is computed again"
                                : Text("; ", loss.steps_lost, " steps are computed again");
  orders.lines.push_back(Text(
      "all ", InWords(ranks()), " go on, ", Seconds(now_ns - loss.lost_ns),
      loss.ranks.empty() ? " after the change" : " after the loss", steps));
}

// The other ranks may end in the same moment.
std::optional<Verdict> Recovery::LeftEarly(
    const std::vector<ExitRecord>& members, int64_t now_ns) const {
  constexpr int64_t kUntilSure = 2'000'000'000;
  const bool some_run = std::any_of(
      members.begin(), members.end(), [](const auto& record) { return record.time_ns == 0; });
  for (const ExitRecord& record : members) {
    const bool left = EndedWell(record) && record.state.joined && !record.in_order &&
                      record.value == 0 && now_ns - record.time_ns > kUntilSure;
    if (left && some_run)
      return Verdict{
          static_cast<int>(ExitCode::kLeftEarly),
          Text(EndOf(record, places_.Names()), " without Shutdown; that ended the job"),
          record.rank};
  }
  return std::nullopt;
}

bool Recovery::AllDone(const std::vector<ExitRecord>& members) {
  const bool some_spared = std::any_of(members.begin(), members.end(), [this](const auto& record) {
    return ranks_[record.rank].spared;
  });
  if (limits_.all_together && !some_spared) return false;
  return static_cast<int>(members.size()) == ranks() &&
         std::all_of(members.begin(), members.end(), [this](const ExitRecord& record) {
           const Rank& rank = ranks_[record.rank];
           return rank.spared || (EndedWell(record) && rank.starting_ns == 0);
         });
}

}  // namespace dtrun::launcher
