#include "launcher/interruption.h"

#include <signal.h>

namespace dtrun::launcher {

Interruption::Step Interruption::OnSignal(int signal, Time now) {
  if (signal == SIGUSR1) return signal_ == 0 ? Step::kNotice : Step::kNone;
  if (signal_ == signal && now - signalled_ < kSameSignal) return Step::kNone;
  if (signal_ != 0) return Step::kKill;
  signal_ = signal;
  signalled_ = now;
  if (phase_ == Phase::kTerminated) return Step::kNone;
  // Nobody reads what the ranks write any more, so nobody waits for them either.
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

}  // namespace dtrun::launcher
