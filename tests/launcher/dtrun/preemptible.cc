// A rank that takes notices, as a trainer does. argv[1] is its reaction to a notice:
//
//   save    exits with code 75
//   wait    the same; waits for the notice with signalfd
//   rank0   rank 0 does `save`, all other ranks continue
//   done    exits with code 0
//   ignore  continues
//   silent  has no handler for notices

#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

namespace {

volatile sig_atomic_t noticed = 0;

void Notice(int) { noticed = 1; }

void WaitForNotice(const std::string& what) {
  sigset_t notice, none;
  sigemptyset(&none);
  sigemptyset(&notice);
  sigaddset(&notice, SIGUSR1);
  sigprocmask(SIG_BLOCK, &notice, nullptr);
  if (what != "wait" && what != "silent") signal(SIGUSR1, Notice);
  if (what == "silent") sigprocmask(SIG_UNBLOCK, &notice, nullptr);
  std::printf("%d\n", static_cast<int>(getpid()));
  std::fflush(stdout);
  signalfd_siginfo info;
  if (what == "wait" && read(signalfd(-1, &notice, 0), &info, sizeof info) <= 0) std::exit(1);
  while (what != "wait" && noticed == 0) sigsuspend(&none);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  const bool first = std::string(std::getenv("RANK")) == "0";
  WaitForNotice(what);
  std::puts("noticed");
  std::fflush(stdout);
  if (what == "done") return 0;
  if (what == "save" || what == "wait" || (what == "rank0" && first)) return 75;
  for (;;) pause();
}
