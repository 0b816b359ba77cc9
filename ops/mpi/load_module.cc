// A process knows its MPI when it starts, so the library for that MPI is loaded then.

#include <dlfcn.h>

#include <array>

#include "dtrun/error.h"
#include "ops/mpi/mpi_module.h"

namespace dtrun::ops {
namespace {

// Shows the functions of MPI to libdtrun_mpich.so, which names no library of MPI, because each
// vendor's has another file name. The process may have loaded its MPI for one of its own libraries
// alone, as Python does. Otherwise, MPI is loaded now.
void ShowMpich() {
  constexpr std::array kFiles = {"libmpich.so.12", "libmpi.so.12"};
  for (const int already : {RTLD_NOLOAD, 0}) {
    for (const char* file : kFiles)
      if (::dlopen(file, RTLD_NOW | RTLD_GLOBAL | already) != nullptr) return;
  }
  throw Error(
      ErrorCode::kUnavailable,
      "the MPI backend cannot be loaded: found neither libmpich.so.12 nor libmpi.so.12; add the "
      "folder of MPICH or Intel MPI to LD_LIBRARY_PATH");
}

}  // namespace

std::unique_ptr<MpiJob> JoinMpiJob(
    const std::string& directory, const MpiHandle& handle, base::Duration timeout) {
  const bool mpich = IsOfMpich(handle.library);
  if (mpich) ShowMpich();
  // Open MPI, which libdtrun_mpi.so loads, itself loads components that look for its symbols.
  const bool global = !mpich;
  const void* module = base::LoadModule(
      directory, mpich ? "libdtrun_mpich.so" : "libdtrun_mpi.so", kMpiModuleEntry,
      "the MPI backend", global);
  return static_cast<const MpiModule*>(module)->join(handle, timeout);
}

}  // namespace dtrun::ops
