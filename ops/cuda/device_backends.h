#ifndef DTRUN_OPS_CUDA_DEVICE_BACKENDS_H_
#define DTRUN_OPS_CUDA_DEVICE_BACKENDS_H_

#include <cstdint>
#include <string>

#include "ops/device_group.h"

namespace dtrun::ops {

/// What a user wants of GPUs.
struct DeviceSettings {
  std::string backend = "auto";  ///< or the name of the only one to consider
  uint64_t memory_bytes = 0;     ///< that this process may take of each GPU; 0: all
};

/// The backends of GPUs that this build has, in the order in which they are tried, which is a table
/// in device_backends.cc. Built twice: no_cuda.cc where the CUDA toolkit is not found, which throws
/// kUnavailable for every group.
DeviceGroupFactory DeviceBackends(const DeviceSettings& settings = {});

}  // namespace dtrun::ops

#endif
