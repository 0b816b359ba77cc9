#include "base/fork_watch.h"

#include <pthread.h>

#include <atomic>

namespace dtrun::base {
namespace {

// Forks between the first process that asked and this one: a fact of the process, not of a job.
std::atomic<int> generation{0};

void CountForks() {
  static const int registered = ::pthread_atfork(
      nullptr, nullptr, [] { generation.fetch_add(1, std::memory_order_relaxed); });
  static_cast<void>(registered);
}

}  // namespace

ForkWatch::ForkWatch() {
  CountForks();
  generation_ = generation.load(std::memory_order_relaxed);
}

bool ForkWatch::forked() const { return generation_ != generation.load(std::memory_order_relaxed); }

}  // namespace dtrun::base
