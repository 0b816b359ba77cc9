#ifndef DTRUN_OPS_MPI_MPI_LISTENERS_H_
#define DTRUN_OPS_MPI_MPI_LISTENERS_H_

#include <vector>

namespace dtrun::ops::mpi {

/// Limits Open MPI's listening sockets to the networks that it is to use (its parameter
/// btl_tcp_if_include). Open MPI itself listens at all addresses of the host. The limited sockets
/// are those that MPI_Init has made: `before` holds the listening sockets of this process before
/// MPI_Init, in ascending order. If the parameter names no networks, all sockets stay as they are.
void NarrowListeners(const std::vector<int>& before);

}  // namespace dtrun::ops::mpi

#endif  // DTRUN_OPS_MPI_MPI_LISTENERS_H_
