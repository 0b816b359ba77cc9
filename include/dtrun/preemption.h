#ifndef DTRUN_PREEMPTION_H_
#define DTRUN_PREEMPTION_H_

#include <dtrun/communicator.h>
#include <dtrun/types.h>
#include <signal.h>

#include <cstddef>
#include <cstdint>

namespace dtrun {

/// The exit code of a rank that has saved its state before the end of the job (EX_TEMPFAIL of
/// sysexits.h). If all ranks end with it, dtrun does so too, and a scheduler may start the job
/// again.
inline constexpr int kPreempted = 75;

/// A notice that this process is going to be ended: SIGUSR1 from dtrun, when dtrun is told to end
/// the job, or SIGTERM from anybody else. While an object exists, the first SIGTERM is a notice,
/// and the second one ends the process. Make it early in main: dtrun gives time to save only to
/// programs that take notices. One object at a time.
///
/// The handler runs on a stack of its own. While oneDNN (at least 2.6 to 3.11, oneDNN's issue 4845)
/// multiplies matrices, the stack pointer of the thread points into the heap, so a handler on the
/// thread's stack would overwrite other memory. Other handlers in a trainer need SA_ONSTACK for the
/// same reason. The stack belongs to the thread that makes the object: make it in the main thread,
/// which takes the signals.
///
///   dtrun::PreemptionNotice notice;
///   ...
///   for (; step < steps; ++step) {
///     Train(step);
///     if (notice.GivenToAny(job.world())) {
///       Save(step + 1);
///       return dtrun::kPreempted;
///     }
///   }
class PreemptionNotice {
 public:
  PreemptionNotice() {
    given_ = 0;
    UseOwnStack();
    struct sigaction action = {};
    action.sa_handler = Take;
    action.sa_flags = SA_RESTART | SA_ONSTACK;
    sigemptyset(&action.sa_mask);
    sigaction(SIGUSR1, &action, &usr1_);
    sigaction(SIGTERM, &action, &term_);
  }
  ~PreemptionNotice() {
    sigaction(SIGUSR1, &usr1_, nullptr);
    sigaction(SIGTERM, &term_, nullptr);
  }
  PreemptionNotice(const PreemptionNotice&) = delete;
  PreemptionNotice& operator=(const PreemptionNotice&) = delete;

  /// Whether this process has got a notice. Ranks get it at different times. Any thread.
  bool given() const { return given_ != 0; }
  /// Whether any rank has got a notice: all ranks get the same answer. Collective: one all-reduce
  /// of 4 bytes.
  bool GivenToAny(Communicator& ranks) const {
    int32_t any = given() ? 1 : 0;
    ranks.AllReduce(Buffer(&any, 1), ReduceOp::kMax);
    return any != 0;
  }

 private:
  static void Take(int number) {
    if (number == SIGTERM && given_ != 0) {
      signal(SIGTERM, SIG_DFL);
      raise(SIGTERM);
    }
    given_ = 1;
  }

  // Keeps a stack that the thread has already. Its own one stays in use after the destructor: a
  // thread may be on it.
  static void UseOwnStack() {
    stack_t stack = {};
    if (sigaltstack(nullptr, &stack) != 0 || (stack.ss_flags & SS_DISABLE) == 0) return;
    stack = {};
    stack.ss_sp = stack_;
    stack.ss_size = sizeof stack_;
    sigaltstack(&stack, nullptr);
  }

  // The registers of a processor with AMX take 11 KB of it.
  alignas(64) inline static char stack_[std::size_t{64} << 10];
  inline static volatile sig_atomic_t given_ = 0;
  struct sigaction usr1_ = {}, term_ = {};
};

}  // namespace dtrun

#endif
