#include "ops/mpi/mpi_module.h"
#include "ops/mpi/mpi_wire.h"

namespace dtrun::ops::mpi {

std::string ExpectedMpi() { return "MPICH, Intel MPI or MVAPICH"; }

bool IsExpectedMpi(const std::string& library) { return IsOfMpich(library); }

}  // namespace dtrun::ops::mpi
