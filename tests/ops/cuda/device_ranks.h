#ifndef DTRUN_TESTS_OPS_CUDA_DEVICE_RANKS_H_
#define DTRUN_TESTS_OPS_CUDA_DEVICE_RANKS_H_

#include <memory>

#include "ops/communicator/communicator_base.h"
#include "tests/conformance/ranks.h"

namespace dtrun::testing {

/// A communicator's collectives on GPU `device`, as the conformance suite sees it: buffers go to
/// the GPU before an operation, with what lies around them, and come back when it is waited for.
std::unique_ptr<Ranks> OverDevice(ops::Communicator& communicator, int device);

}  // namespace dtrun::testing

#endif
