#ifndef DTRUN_OPS_MPI_MPI_CALLS_H_
#define DTRUN_OPS_MPI_MPI_CALLS_H_

#include <mpi.h>

#include <cstdint>

namespace dtrun::ops::mpi {

/// Throws Error kSystem with MPI's own words unless `result` is MPI_SUCCESS.
void Check(int result, const char* call);

/// Counts of MPI are ints.
inline int Int(uint64_t count) { return static_cast<int>(count); }

/// A started MPI call. MPI still owns the buffers of one that is destroyed unfinished: that only
/// happens after a timeout or a lost peer, when they are left alone.
class Request {
 public:
  MPI_Request* get() { return &request_; }
  /// True once the call has finished; does not block.
  bool Test();

 private:
  MPI_Request request_ = MPI_REQUEST_NULL;
};

}  // namespace dtrun::ops::mpi

#endif
