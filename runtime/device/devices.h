#ifndef DTRUN_RUNTIME_DEVICE_DEVICES_H_
#define DTRUN_RUNTIME_DEVICE_DEVICES_H_

namespace dtrun::runtime {

/// GPUs that this process can use, at least one. Throws Error kUnavailable with the reason where
/// there are none. Built twice: cuda_devices.cc where the CUDA toolkit is found, no_cuda.cc
/// elsewhere.
int CudaDeviceCount();

}  // namespace dtrun::runtime

#endif
