#ifndef DTRUN_OPS_MPI_OPEN_MPI_H_
#define DTRUN_OPS_MPI_OPEN_MPI_H_

#include <string>

namespace dtrun::ops::mpi {

/// Throws Error kUnavailable unless `library`, what MPI_Get_library_version says of itself, is an
/// Open MPI that dtrun works with: 4 or 5.
void CheckIsOpenMpi(const std::string& library);

/// Its first words, for people: "Open MPI v4.1.4", "MPICH Version: 4.0.2".
std::string NameOfLibrary(const std::string& library);

}  // namespace dtrun::ops::mpi

#endif
