#ifndef DTRUN_TESTS_RANKS_REDUCER_CHECKS_H_
#define DTRUN_TESTS_RANKS_REDUCER_CHECKS_H_

#include <dtrun/communicator.h>

#include "tests/conformance/suite.h"

namespace dtrun::testing {

/// Reducers with all kinds of buckets, marked in orders of their own on each rank and in each step,
/// compressed and not: their sums are exact.
void CheckReducers(Communicator& comm, Findings& findings);

}  // namespace dtrun::testing

#endif
