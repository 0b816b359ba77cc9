#ifndef DTRUN_TESTS_SUPPORT_REFERENCE_COMMUNICATOR_H_
#define DTRUN_TESTS_SUPPORT_REFERENCE_COMMUNICATOR_H_

#include <memory>
#include <vector>

#include "ops/communicator/communicator_base.h"
#include "ops/engine/progress_engine.h"

namespace dtrun::testing {

/// A communicator for ranks that are threads of one process and share a table of calls. The last
/// rank that arrives computes the results of all ranks. Supports messages and every kind of
/// collective. It is slow and simple: the oracle for backends, and the part of composed
/// communicators in tests. Collective.
std::unique_ptr<ops::Communicator> CreateReferenceCommunicator(
    ops::Bootstrap& bootstrap, ops::Engine& engine, ops::Members members);

}  // namespace dtrun::testing

#endif
