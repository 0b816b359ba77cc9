#ifndef DTRUN_TESTS_TORCH_SIMULATED_CUDA_H_
#define DTRUN_TESTS_TORCH_SIMULATED_CUDA_H_

#include <c10/core/Stream.h>

namespace dtrun::testing {

/// Adds tensors on "cuda" to a LibTorch that was built for the CPU. The tensors lie in the memory
/// of the simulated GPU. An operation waits for the current stream and then runs LibTorch's CPU
/// kernel, which can access this memory. An operation therefore sees the work that dtrun enqueued
/// before it, and misses work that dtrun failed to put in order.
///
/// Call this once, before the first tensor on "cuda" is made. Do not call it with a LibTorch that
/// was built for CUDA.
void SimulateCuda();

/// A second stream of the GPU, which is the current stream while this object lives.
class OwnStream {
 public:
  OwnStream();
  ~OwnStream();

 private:
  c10::Stream before_;
};

}  // namespace dtrun::testing

#endif
