#ifndef DTRUN_OPS_SELF_SELF_COMMUNICATOR_H_
#define DTRUN_OPS_SELF_SELF_COMMUNICATOR_H_

#include <memory>

#include "ops/communicator/communicator_base.h"

namespace dtrun::ops {

/// A communicator of one rank. Every operation is done when Start returns.
std::unique_ptr<Communicator> CreateSelfCommunicator(Members members = Members::World(1));

}  // namespace dtrun::ops

#endif
