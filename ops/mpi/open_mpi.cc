#include "ops/mpi/mpi_wire.h"

namespace dtrun::ops::mpi {

std::string ExpectedMpi() { return "Open MPI 4 or 5"; }

bool IsExpectedMpi(const std::string& library) {
  return library.starts_with("Open MPI v4.") || library.starts_with("Open MPI v5.");
}

}  // namespace dtrun::ops::mpi
