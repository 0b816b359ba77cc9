#include "gpu/kernels.h"

#include <vector>

#include "dtrun/error.h"
#include "gpu/driver.h"

namespace dtrun::gpu {

CUfunction Kernels::Find(const Device& device, const char* kernel) {
  std::lock_guard lock(mutex_);
  CUfunction& function = functions_[{device.index(), kernel}];
  if (function != nullptr) return function;
  const DeviceScope scope(device);
  CUmodule& module = modules_[device.index()];
  if (module == nullptr) module = Load(device);
  Check(
      Driver::Get().cuModuleGetFunction(&function, module, kernel),
      (name_ + ": looking for " + kernel).c_str());
  return function;
}

CUmodule Kernels::Load(const Device& device) const {
  const Driver& driver = Driver::Get();
  const std::string loading = "loading " + name_ + " on " + device.name();
  CUmodule module = nullptr;
  Check(driver.cuModuleLoadData(&module, image_), loading.c_str());
  unsigned count = 0;
  Check(driver.cuModuleGetFunctionCount(&count, module), loading.c_str());
  std::vector<CUfunction> functions(count);
  Check(driver.cuModuleEnumerateFunctions(functions.data(), count, module), loading.c_str());
  for (const CUfunction function : functions) Check(driver.cuFuncLoad(function), loading.c_str());
  return module;
}

void Kernels::LaunchWithParameter(
    const Device& device, const char* kernel, const Shape& shape, CUstream stream,
    const void* parameter) {
  if (shape.blocks == 0 || shape.blocks_y == 0) return;
  const CUfunction function = Find(device, kernel);
  const DeviceScope scope(device);
  const Driver& driver = Driver::Get();
  void* parameters[] = {const_cast<void*>(parameter)};
  const CUresult result = driver.cuLaunchKernel(
      function, shape.blocks, shape.blocks_y, 1, shape.threads, 1, 1, 0, stream, parameters,
      nullptr);
  if (result != CUDA_SUCCESS) Check(result, (std::string("launching ") + kernel).c_str());
}

}  // namespace dtrun::gpu
