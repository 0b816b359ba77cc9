#ifndef DTRUN_TESTS_RANKS_REDUCER_CHECKS_H_
#define DTRUN_TESTS_RANKS_REDUCER_CHECKS_H_

#include <dtrun/communicator.h>

#include "tests/conformance/suite.h"

namespace dtrun::testing {

/// Checks that reducers compute exact sums with all kinds of buckets and wire formats. The order of
/// marks differs on each rank and in each step.
void CheckReducers(Communicator& comm, Findings& findings);

}  // namespace dtrun::testing

#endif
