#include "models/data/worker_thread.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>

namespace dtrun::models {
namespace {

// The last CPU of those that may be used, if computing threads leave one.
void MoveToSpareCpu(int compute_threads) {
  cpu_set_t own;
  if (compute_threads <= 0 || sched_getaffinity(0, sizeof(own), &own) != 0) return;
  if (CPU_COUNT(&own) <= compute_threads) return;
  int last = CPU_SETSIZE - 1;
  while (!CPU_ISSET(last, &own)) --last;
  cpu_set_t spare;
  CPU_ZERO(&spare);
  CPU_SET(last, &spare);
  sched_setaffinity(0, sizeof(spare), &spare);
}

}  // namespace

std::thread StartWorker(int compute_threads, const std::function<void()>& body) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);  // the thread inherits it
  std::thread thread([compute_threads, body] {
    pthread_setname_np(pthread_self(), "dtrun-input");
    const sched_param none{};
    sched_setscheduler(0, SCHED_BATCH, &none);
    MoveToSpareCpu(compute_threads);
    body();
  });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return thread;
}

}  // namespace dtrun::models
