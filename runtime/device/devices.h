#ifndef DTRUN_RUNTIME_DEVICE_DEVICES_H_
#define DTRUN_RUNTIME_DEVICE_DEVICES_H_

#include <cstdint>
#include <string>

namespace dtrun::runtime {

/// GPUs that this process can use, at least one. Throws Error kUnavailable with the reason where
/// there are none. Built twice: cuda_devices.cc where the CUDA toolkit is found, no_cuda.cc
/// elsewhere.
int CudaDeviceCount();

struct CudaDevice {
  std::string name, bus_id;
  uint64_t memory_bytes = 0;
};

/// Takes nothing of the GPU. The result stays. Throws as CudaDeviceCount, kInvalidArgument for a
/// GPU that there is not. Any thread.
const CudaDevice& DescribeCudaDevice(int index);

}  // namespace dtrun::runtime

#endif
