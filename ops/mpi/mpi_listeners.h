#ifndef DTRUN_OPS_MPI_MPI_LISTENERS_H_
#define DTRUN_OPS_MPI_MPI_LISTENERS_H_

#include <vector>

namespace dtrun::ops::mpi {

/// Open MPI listens at all addresses of the host, whatever networks it is to use (its parameter
/// btl_tcp_if_include). Has the sockets that MPI_Init has made since `before`, the listening
/// sockets of this process then, take no connections from elsewhere. Does nothing where no networks
/// are named.
void NarrowListeners(const std::vector<int>& before);

}  // namespace dtrun::ops::mpi

#endif  // DTRUN_OPS_MPI_MPI_LISTENERS_H_
