#include "launcher/job/interruption.h"

#include <signal.h>

#include <algorithm>

#include "base/text.h"
#include "launcher/support/launch_error.h"

namespace dtrun::launcher {

Interruption::Step Interruption::OnSignal(int signal, Time now) {
  if (signal == SIGUSR1) return signal_ == 0 ? Step::kNotice : Step::kNone;
  if (signal_ == signal && now - signalled_ < kSameSignal) return Step::kNone;
  if (signal_ != 0) return Step::kKill;
  signal_ = signal;
  signalled_ = now;
  if (phase_ == Phase::kTerminated) return Step::kNone;
  // After SIGPIPE, no process reads the ranks' output, so dtrun does not wait for the ranks.
  if (grace_.count() == 0 || signal == SIGPIPE) return Terminate(now);
  phase_ = Phase::kAsking;
  return Step::kNotice;
}

Interruption::Step Interruption::OnEnd(Time now, std::chrono::seconds patience) {
  return phase_ == Phase::kTerminated ? Step::kNone : Terminate(now, patience);
}

Interruption::Step Interruption::OnTime(const NoticeAnswers& answers, Time now) {
  switch (phase_) {
    case Phase::kRunning: return Step::kNone;
    case Phase::kAsking:
      if (answers.takers > 0) {
        phase_ = Phase::kGrace;
        return OnTime(answers, now);
      }
      // A user who types Ctrl-C wants no delay.
      if (answers.starting > 0 && signal_ != SIGINT && now - signalled_ < kStartTime)
        return Step::kNone;
      return answers.awaited == 0 || now - signalled_ >= kAnswerTime ? Terminate(now) : Step::kNone;
    case Phase::kGrace: return now - signalled_ >= grace_ ? Terminate(now) : Step::kNone;
    case Phase::kTerminated: return now >= kill_by_ ? Step::kKill : Step::kNone;
  }
  return Step::kNone;
}

Interruption::Step Interruption::Terminate(Time now, std::chrono::seconds patience) {
  phase_ = Phase::kTerminated;
  kill_by_ = now + patience;
  return Step::kTerminate;
}

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
      base::Text(
          "rank ", late->rank, " on ",
          hosts[static_cast<size_t>(base::HostOfRank(hosts, late->rank))].name, " still ran ",
          patience.count(), " s (--grace) after rank ", first->rank,
          " had saved and ended with code ", kSaved),
      late->rank};
}

}  // namespace dtrun::launcher
