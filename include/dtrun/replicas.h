#ifndef DTRUN_REPLICAS_H_
#define DTRUN_REPLICAS_H_

#include <dtrun/c.h>
#include <dtrun/communicator.h>
#include <dtrun/context.h>
#include <dtrun/error.h>
#include <dtrun/strategies.h>
#include <dtrun/strategy.h>

#include <algorithm>
#include <cstddef>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace dtrun {

/// The number of replicas that strategy `spec` has in each process of `job`: the length of the list
/// of devices if the job has one rank, and otherwise 1.
///
///   "mirrored:cuda:0,cuda:1" in a job of one rank  ->  2
inline int ReplicasPerProcess(Context& job, const std::string& spec) {
  const std::string name = spec.substr(0, spec.find(':'));
  const bool mirrors = name == "mirrored" || name == "multi_worker_mirrored";
  if (job.size() > 1 || !mirrors) return 1;
  return 1 + static_cast<int>(std::count(spec.begin(), spec.end(), ','));
}

namespace detail {

/// The first error of several threads. Thread-safe.
class FirstError {
 public:
  /// Keeps the current exception if it is the first.
  void Keep() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (first_ == nullptr) first_ = std::current_exception();
  }
  /// Throws the kept exception, if there is one.
  void Rethrow() const {
    if (first_ != nullptr) std::rethrow_exception(first_);
  }

 private:
  std::mutex mutex_;
  std::exception_ptr first_;
};

/// Makes the calling thread replica `index`, runs `body(strategy)` and leaves.
template <typename Body>
void RunReplica(
    dtrun_replicas* replicas, int index, const std::string& host, const std::string& spec,
    FirstError& error, const Body& body) {
  bool failed = false;
  try {
    dtrun_communicator* handle = nullptr;
    Check(dtrun_replicas_join(replicas, index, &handle));
    Communicator world(handle, Communicator::Ownership::kBorrowed);
    const auto strategy = MakeStrategy({world, {{host, world.size()}}}, spec);
    body(*strategy);
  } catch (...) {
    error.Keep();
    failed = true;
  }
  try {
    Check(dtrun_replicas_leave(replicas, index, failed ? 1 : 0));
  } catch (const Error&) {
    error.Keep();
  }
}

}  // namespace detail

/// Makes strategy `spec`, as MakeStrategy does, and calls `body(strategy)` once for each replica of
/// this process: in this thread for one replica, and otherwise at the same time in a thread each
/// (ReplicasPerProcess). Returns when all have returned. Collective.
///
///   RunReplicas(job, "mirrored:cuda:0,cuda:1", [&](Strategy& strategy) { Train(strategy); });
///
/// Threads use `strategy.replicas()` and not `job.world()`, share no objects that are not
/// thread-safe, and have `job.threads() / ReplicasPerProcess(job, spec)` compute threads each. If a
/// body throws, the other replicas' waiting operations end with kPeerLost, and RunReplicas throws
/// the first error.
template <typename Body>
void RunReplicas(Context& job, const std::string& spec, const Body& body) {
  const int count = ReplicasPerProcess(job, spec);
  if (count == 1) {
    const auto strategy = MakeStrategy(job, spec);
    body(*strategy);
    return;
  }
  dtrun_replicas* handle = nullptr;
  detail::Check(dtrun_replicas_create(job.handle(), count, &handle));
  const std::unique_ptr<dtrun_replicas, decltype(&dtrun_replicas_destroy)> replicas(
      handle, &dtrun_replicas_destroy);
  const std::string host = job.hosts()[0].name;
  detail::FirstError error;
  std::vector<std::thread> threads;
  for (int index = 0; index < count; ++index)
    threads.emplace_back(
        [&, index] { detail::RunReplica(replicas.get(), index, host, spec, error, body); });
  for (std::thread& thread : threads) thread.join();
  error.Rethrow();
}

}  // namespace dtrun

#endif  // DTRUN_REPLICAS_H_
