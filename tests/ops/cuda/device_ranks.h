#ifndef DTRUN_TESTS_OPS_CUDA_DEVICE_RANKS_H_
#define DTRUN_TESTS_OPS_CUDA_DEVICE_RANKS_H_

#include <memory>

#include "ops/communicator/communicator_base.h"
#include "tests/conformance/ranks.h"

namespace dtrun::testing {

/// Runs the conformance suite's operations on GPU `device`. The buffers and the bytes around them
/// go to the GPU before an operation. They come back in the wait for the operation.
std::unique_ptr<Ranks> OverDevice(ops::Communicator& communicator, int device);

}  // namespace dtrun::testing

#endif
