// Compiled against CUDA's header, but libcuda is loaded when somebody asks: the same binary runs
// without a GPU or a driver.

#include <cuda.h>
#include <dlfcn.h>

#include "base/text.h"
#include "dtrun/error.h"
#include "runtime/device/devices.h"

namespace dtrun::runtime {
namespace {

template <typename Function>
Function* Find(void* library, const char* name) {
  void* symbol = ::dlsym(library, name);
  if (symbol == nullptr) {
    throw Error(ErrorCode::kUnavailable, base::Text("no GPU: libcuda.so.1 has no ", name));
  }
  return reinterpret_cast<Function*>(symbol);
}

}  // namespace

int CudaDeviceCount() {
  void* library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    throw Error(
        ErrorCode::kUnavailable, "no GPU: the NVIDIA driver's libcuda.so.1 is not installed");
  }
  const CUresult initialized = Find<CUresult(unsigned)>(library, "cuInit")(0);
  int count = 0;
  if (initialized == CUDA_SUCCESS) Find<CUresult(int*)>(library, "cuDeviceGetCount")(&count);
  if (count < 1) {
    throw Error(
        ErrorCode::kUnavailable, base::Text(
                                     "no GPU: the NVIDIA driver lists none (cuInit returned ",
                                     static_cast<int>(initialized), ")"));
  }
  return count;
}

}  // namespace dtrun::runtime
