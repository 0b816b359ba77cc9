#ifndef DTRUN_TESTS_OPS_CUDA_DEVICE_JOB_H_
#define DTRUN_TESTS_OPS_CUDA_DEVICE_JOB_H_

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "base/process.h"
#include "ops/backends/backends.h"
#include "ops/communicator/communicator_base.h"
#include "ops/engine/progress_engine.h"
#include "ops/self/self_communicator.h"
#include "ops/shm/shm_communicator.h"
#include "tests/support/thread_ranks.h"

namespace dtrun::testing {

/// Runs `rank_main` on `size` ranks, which are threads of this process. Their communicators reach
/// GPUs. Returns the error of each rank, "" if the rank succeeds.
inline std::vector<std::string> RunDeviceRanks(
    int size, const std::function<void(ops::Communicator&)>& rank_main,
    base::Duration timeout = std::chrono::seconds(20), const std::string& backend = "auto") {
  const base::SteadyClock clock;
  return RunRanks(size, [&](ops::Bootstrap& bootstrap) {
    ops::Engine engine({.timeout = timeout, .may_spin = false}, clock, [](auto, const auto&) {});
    const auto communicator =
        size == 1
            ? ops::CreateSelfCommunicator()
            : ops::CreateShmCommunicator(bootstrap, engine, ops::Members::World(bootstrap.size()));
    communicator->UseDevices(ops::DeviceBackends({.backend = backend}));
    rank_main(*communicator);
  });
}

}  // namespace dtrun::testing

#endif
