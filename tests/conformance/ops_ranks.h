#ifndef DTRUN_TESTS_CONFORMANCE_OPS_RANKS_H_
#define DTRUN_TESTS_CONFORMANCE_OPS_RANKS_H_

#include <memory>

#include "ops/communicator/communicator_base.h"
#include "tests/conformance/ranks.h"

namespace dtrun::testing {

/// Adapts a communicator of ops/ to the conformance suite.
std::unique_ptr<Ranks> OverOps(ops::Communicator& communicator);

}  // namespace dtrun::testing

#endif
