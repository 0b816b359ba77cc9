// Rank 1 never calls the second collective. argv[1] selects the behaviour of rank 1 and of the
// waiting ranks. If argv[1] is absent or empty, all ranks only call Init and Shutdown.

#include <dtrun/communicator.h>
#include <dtrun/context.h>
#include <dtrun/error.h>
#include <dtrun/types.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <exception>
#include <string>

namespace programs::in_vain {

void WaitInVain(dtrun::Communicator& world, const std::string& what) {
  float data[4] = {};
  world.Barrier();
  if (world.rank() == 1) {
    // The delay lets the other ranks reach the all-reduce. Only their reported activity depends on
    // it.
    if (what == "killed") sleep(2), raise(SIGKILL);
    for (;;) pause();
  }
  if (what == "forgotten") {
    static_cast<void>(world.StartAllReduce(dtrun::Buffer(data, 4)));
    for (;;) pause();
  }
  world.AllReduce(dtrun::Buffer(data, 4));
}

int Main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  dtrun::Context job = dtrun::Init();
  try {
    if (!what.empty()) WaitInVain(job.world(), what);
    job.Shutdown();
  } catch (const dtrun::Error& error) {
    if (what == "uncaught") std::terminate();
    if (job.rank() == 0) std::printf("%d: %s\n", static_cast<int>(error.code()), error.what());
    job.Shutdown();
  }
  return 0;
}

}  // namespace programs::in_vain
