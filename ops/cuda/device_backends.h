#ifndef DTRUN_OPS_CUDA_DEVICE_BACKENDS_H_
#define DTRUN_OPS_CUDA_DEVICE_BACKENDS_H_

#include <string>

#include "ops/device_group.h"

namespace dtrun::ops {

/// The backends of GPUs that this build has, in the order in which they are tried, which is a table
/// in device_backends.cc; of these `wanted` alone, unless it is "auto". Built twice: no_cuda.cc
/// where the CUDA toolkit is not found, which throws kUnavailable for every group.
DeviceGroupFactory DeviceBackends(const std::string& wanted = "auto");

}  // namespace dtrun::ops

#endif
