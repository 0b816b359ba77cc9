// dtrun is compiled against CUDA's header. The first use loads the driver, so the same binary runs
// without a driver. The driver is looked for only once.

#include "gpu/driver.h"

#include <dlfcn.h>

#include <cstdlib>

#include "dtrun/error.h"

namespace dtrun::gpu {
namespace {

[[noreturn]] void NoGpu(const std::string& why) {
  throw Error(ErrorCode::kUnavailable, "no GPU: " + why);
}

std::string LoadInto(Driver& driver) {
  void* library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return "the NVIDIA driver's libcuda.so.1 is not installed";
#define DTRUN_QUOTED(name) #name
#define DTRUN_FIND_DRIVER_FUNCTION(name)                                                       \
  driver.name = reinterpret_cast<decltype(driver.name)>(::dlsym(library, DTRUN_QUOTED(name))); \
  if (driver.name == nullptr)                                                                  \
    return "libcuda.so.1 has no " DTRUN_QUOTED(name) "; is it older than CUDA 12.4?";
  DTRUN_FOR_EACH_DRIVER_FUNCTION(DTRUN_FIND_DRIVER_FUNCTION)
#undef DTRUN_FIND_DRIVER_FUNCTION
#undef DTRUN_QUOTED
  // All streams share this many queues of a GPU; the default is 8. Work in a queue waits for
  // earlier work of other streams in that queue. Ranks that are threads have kernels that wait for
  // each other, so these kernels would wait forever. The driver reads the variable once, in cuInit.
  ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", /*overwrite=*/0);
  const CUresult initialized = driver.cuInit(0);
  int count = 0;
  if (initialized == CUDA_SUCCESS) driver.cuDeviceGetCount(&count);
  if (count >= 1) return "";
  return "the NVIDIA driver lists none (cuInit returned " +
         std::to_string(static_cast<int>(initialized)) + ")";
}

struct Loaded {
  Driver driver;
  std::string problem = LoadInto(driver);
};

}  // namespace

const Driver& Driver::Get() {
  static const Loaded loaded;
  if (!loaded.problem.empty()) NoGpu(loaded.problem);
  return loaded.driver;
}

std::string Describe(CUresult result) {
  const char *name = nullptr, *text = nullptr;
  Driver::Get().cuGetErrorName(result, &name);
  Driver::Get().cuGetErrorString(result, &text);
  if (name == nullptr) return "CUDA error " + std::to_string(static_cast<int>(result));
  return text == nullptr ? name : std::string(name) + " (" + text + ")";
}

void Check(CUresult result, const char* call) {
  if (result == CUDA_SUCCESS) return;
  throw Error(ErrorCode::kSystem, std::string(call) + " failed: " + Describe(result));
}

LoadedLibrary::LoadedLibrary(std::initializer_list<const char*> names) {
  std::string problem;
  for (const char* name : names) {
    handle_ = ::dlopen(name, RTLD_NOW | RTLD_LOCAL);
    name_ = name;
    if (handle_ != nullptr) return;
    if (problem.empty()) problem = ::dlerror();
  }
  throw Error(ErrorCode::kUnavailable, problem);
}

void* LoadedLibrary::FindSymbol(const char* name) const {
  void* symbol = ::dlsym(handle_, name);
  if (symbol == nullptr) throw Error(ErrorCode::kUnavailable, name_ + " has no " + name);
  return symbol;
}

}  // namespace dtrun::gpu
