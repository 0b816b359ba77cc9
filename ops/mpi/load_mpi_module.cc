#include <dlfcn.h>

#include <filesystem>

#include "base/text.h"
#include "base/version.h"
#include "dtrun/error.h"
#include "ops/mpi/mpi_module.h"

namespace dtrun::ops {
namespace {

// The folder of the file that holds this code: libdtrun.so, or a program that contains it.
std::filesystem::path OwnDirectory() {
  Dl_info info{};
  ::dladdr(reinterpret_cast<void*>(&JoinMpiJob), &info);
  std::error_code ignored;
  const auto file =
      std::filesystem::canonical(info.dli_fname == nullptr ? "" : info.dli_fname, ignored);
  return file.parent_path();
}

// Beside the library, or else in its folder dtrun/: Debian's packages have the module there.
std::filesystem::path ModuleIn(const std::filesystem::path& folder) {
  const std::filesystem::path name = "libdtrun_mpi.so";
  std::error_code ignored;
  const bool is_apart = !std::filesystem::exists(folder / name, ignored) &&
                        std::filesystem::exists(folder / "dtrun" / name, ignored);
  return is_apart ? folder / "dtrun" / name : folder / name;
}

}  // namespace

std::unique_ptr<MpiJob> JoinMpiJob(
    const std::string& directory, const MpiHandle& handle, base::Duration timeout) {
  const std::string path =
      ModuleIn(directory.empty() ? OwnDirectory() : std::filesystem::path(directory));
  // RTLD_GLOBAL, because Open MPI loads components that look for its symbols.
  void* library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr) {
    throw Error(
        ErrorCode::kUnavailable, base::Text("the MPI backend cannot be loaded: ", ::dlerror()));
  }
  const auto entry = reinterpret_cast<MpiModuleEntry>(::dlsym(library, kMpiModuleEntry));
  const std::string version = entry == nullptr ? "none" : entry()->version;
  if (version != base::kVersion) {
    throw Error(
        ErrorCode::kUnavailable,
        base::Text(
            path, " is of version ", version, "; expected ", base::kVersion,
            ", the version of libdtrun.so; install dtrun again"));
  }
  return entry()->join(handle, timeout);
}

}  // namespace dtrun::ops
