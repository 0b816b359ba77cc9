#ifndef DTRUN_TESTS_TORCH_SIMULATED_CUDA_H_
#define DTRUN_TESTS_TORCH_SIMULATED_CUDA_H_

#include <c10/core/Stream.h>

namespace dtrun::testing {

/// Gives a LibTorch that was built for the CPU tensors on "cuda", which lie in the simulated GPU's
/// memory. An operation waits for the current stream and is then done by LibTorch's kernels for the
/// CPU, which reach that memory as well. So it sees what dtrun has enqueued before it, and does not
/// see what dtrun has failed to put in its order.
///
/// Call it once, before the first tensor there is made. With a LibTorch that was built for CUDA
/// there is nothing to do: leave it out.
void SimulateCuda();

/// A stream of the GPU besides the default one, which is current while this lives.
class OwnStream {
 public:
  OwnStream();
  ~OwnStream();

 private:
  c10::Stream before_;
};

}  // namespace dtrun::testing

#endif
