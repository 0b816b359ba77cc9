#ifndef DTRUN_TESTS_CONFORMANCE_PUBLIC_RANKS_H_
#define DTRUN_TESTS_CONFORMANCE_PUBLIC_RANKS_H_

#include <dtrun/communicator.h>

#include <memory>

#include "tests/conformance/ranks.h"

namespace dtrun::testing {

/// Adapts a communicator of the public API to the conformance suite.
std::unique_ptr<Ranks> OverPublicApi(Communicator& communicator);

}  // namespace dtrun::testing

#endif
