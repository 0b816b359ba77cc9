#ifndef DTRUN_OPS_SHM_SHM_UPDATE_H_
#define DTRUN_OPS_SHM_SHM_UPDATE_H_

#include <functional>
#include <memory>

#include "ops/engine.h"
#include "ops/share_update.h"
#include "ops/shm/shm_group.h"

namespace dtrun::ops::shm {

/// A reduce_update or reduce_update_gather of the group's ranks, in one pass over memory that all
/// of them map; see shm_update.cc. Collective. False when a buffer of some rank is private: then
/// nothing has happened. `barrier` is the communicator's. Throws the errors of a collective.
bool UpdateInOnePass(
    const std::shared_ptr<ShmGroup>& group, Engine& engine, const Collective& collective,
    const ShareUpdate& update, const std::function<void()>& barrier);

}  // namespace dtrun::ops::shm

#endif
