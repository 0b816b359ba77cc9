#ifndef DTRUN_TESTS_CONFORMANCE_PUBLIC_RANKS_H_
#define DTRUN_TESTS_CONFORMANCE_PUBLIC_RANKS_H_

#include <dtrun/communicator.h>

#include <memory>

#include "tests/conformance/ranks.h"

namespace dtrun::testing {

/// A communicator of the public API, as the conformance suite sees it.
std::unique_ptr<Ranks> OverPublicApi(Communicator& communicator);

}  // namespace dtrun::testing

#endif
