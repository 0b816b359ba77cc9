#include "ops/mpi/mpi_module.h"

namespace dtrun::ops {

std::unique_ptr<MpiJob> JoinMpiJob(
    const std::string& directory, const MpiHandle& handle, base::Duration timeout) {
  // Open MPI loads components that look for its symbols.
  constexpr bool kGlobal = true;
  const void* module =
      base::LoadModule(directory, "libdtrun_mpi.so", kMpiModuleEntry, "the MPI backend", kGlobal);
  return static_cast<const MpiModule*>(module)->join(handle, timeout);
}

}  // namespace dtrun::ops
