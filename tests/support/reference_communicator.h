#ifndef DTRUN_TESTS_SUPPORT_REFERENCE_COMMUNICATOR_H_
#define DTRUN_TESTS_SUPPORT_REFERENCE_COMMUNICATOR_H_

#include <memory>
#include <vector>

#include "ops/communicator/communicator_base.h"
#include "ops/engine/progress_engine.h"

namespace dtrun::testing {

/// Ranks as threads of one process that share a table of calls: the last rank to come computes
/// everybody's result from everybody's buffers, by the book. Slow, and simple enough to be right:
/// the oracle for backends, and what composed communicators are composed of in tests. Every kind,
/// messages too. Collective.
std::unique_ptr<ops::Communicator> CreateReferenceCommunicator(
    ops::Bootstrap& bootstrap, ops::Engine& engine, ops::Members members);

}  // namespace dtrun::testing

#endif
