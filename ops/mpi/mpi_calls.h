#ifndef DTRUN_OPS_MPI_MPI_CALLS_H_
#define DTRUN_OPS_MPI_MPI_CALLS_H_

#include <mpi.h>

#include <cstdint>
#include <functional>

#include "base/clock.h"

namespace dtrun::ops::mpi {

/// Throws Error kSystem with MPI's own words unless `result` is MPI_SUCCESS.
void Check(int result, const char* call);

/// Counts of MPI are ints: the caller sees to it that `count` is less than 2^31.
inline int Int(uint64_t count) { return static_cast<int>(count); }

/// Looks again and again, soon with pauses, until `done()`; false when that lasts longer than
/// `timeout`. For the time before there is an engine.
bool WaitUntil(base::Duration timeout, const std::function<bool()>& done);

/// Collective: a communicator of the same ranks that returns errors. Throws Error kTimeout.
MPI_Comm DuplicateOf(MPI_Comm comm, base::Duration timeout);

}  // namespace dtrun::ops::mpi

#endif
