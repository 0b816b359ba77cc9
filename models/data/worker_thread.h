#ifndef DTRUN_MODELS_DATA_WORKER_THREAD_H_
#define DTRUN_MODELS_DATA_WORKER_THREAD_H_

#include <functional>
#include <thread>

namespace dtrun::models {

/// A thread that works beside `compute_threads` computing ones. If this process may use more CPUs
/// than those, it runs on the last of the others. The kernel does not let it push a computing
/// thread aside when it wakes up (SCHED_BATCH). Signals are left to the other threads.
std::thread StartWorker(int compute_threads, const std::function<void()>& body);

}  // namespace dtrun::models

#endif
