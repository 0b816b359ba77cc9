#include "tests/models/thread_world.h"

#include <chrono>

#include "base/process.h"
#include "ops/backends/backends.h"
#include "ops/engine/flight_recorder.h"
#include "ops/engine/progress_engine.h"
#include "ops/shm/shm_communicator.h"
#include "runtime/c_api/handles.h"
#include "tests/support/thread_ranks.h"

namespace dtrun::testing {

std::vector<std::string> OnRanks(int size, const std::function<void(Communicator&)>& rank_main) {
  const base::SteadyClock clock;
  return RunRanks(size, [&](ops::Bootstrap& bootstrap) {
    ops::EngineOptions options{.may_spin = false};
    options.stall_warning = options.timeout = std::chrono::seconds(60);
    ops::Engine engine(options, clock, [](auto, const auto&) {});
    const auto shm =
        ops::CreateShmCommunicator(bootstrap, engine, ops::Members::World(bootstrap.size()));
    shm->UseDevices(ops::DeviceBackends());
    const auto recorder = ops::FlightRecorder::InMemory(bootstrap.rank(), "here");
    const base::LogSink log = [](auto, const auto&) {};
    dtrun_communicator handle{
        {.recorder = recorder.get(), .log = &log, .engine = &engine}, shm.get(), nullptr, 1024};
    Communicator world(&handle, Communicator::Ownership::kBorrowed);
    rank_main(world);
  });
}

}  // namespace dtrun::testing
