#ifndef DTRUN_TESTS_GPU_SIMULATOR_FIBER_H_
#define DTRUN_TESTS_GPU_SIMULATOR_FIBER_H_

#include <ucontext.h>

// On x86-64, a few instructions resume a fiber. On other CPUs, and under sanitizers, which must see
// the switch, swapcontext resumes a fiber. It makes a system call each time.
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define DTRUN_FIBERS_SWITCH_STACKS 1
#else
#define DTRUN_FIBERS_SWITCH_STACKS 0
#endif

namespace dtrun::gpu_simulator {

/// A function with its own stack. It runs while a thread resumes it.
class Fiber {
 public:
  Fiber();
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  /// `body` begins at the next Resume. It never returns; its last call is Leave.
  void Start(void (*body)());
  /// Runs the fiber until it leaves.
  void Resume();
  /// Called by the running fiber: returns to the thread that resumed it.
  void Leave();

 private:
  void* stack_ = nullptr;
#if DTRUN_FIBERS_SWITCH_STACKS
  void *here_ = nullptr, *resumer_ = nullptr;  // stack pointers while suspended
#else
  ucontext_t here_ = {}, resumer_ = {};
#endif
};

}  // namespace dtrun::gpu_simulator

#endif
