#ifndef DTRUN_TESTS_GPU_SIMULATOR_FIBER_H_
#define DTRUN_TESTS_GPU_SIMULATOR_FIBER_H_

#include <ucontext.h>

// On x86-64 a fiber is resumed with a few instructions. Elsewhere, and for sanitizers, which have
// to see it, by swapcontext, which calls the kernel each time.
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define DTRUN_FIBERS_SWITCH_STACKS 1
#else
#define DTRUN_FIBERS_SWITCH_STACKS 0
#endif

namespace dtrun::gpu_simulator {

/// A function with a stack of its own, which runs while a thread has resumed it.
class Fiber {
 public:
  Fiber();
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  /// `body` begins when the fiber is resumed next. It does not return, it leaves for good.
  void Start(void (*body)());
  /// Until the fiber leaves.
  void Resume();
  /// For the fiber that runs: back to who has resumed it.
  void Leave();

 private:
  void* stack_ = nullptr;
#if DTRUN_FIBERS_SWITCH_STACKS
  void *here_ = nullptr, *resumer_ = nullptr;  // stack pointers of who does not run
#else
  ucontext_t here_ = {}, resumer_ = {};
#endif
};

}  // namespace dtrun::gpu_simulator

#endif
