// A rank of a job in which something is wrong; argv[1] says what. Prints what it was told, once, on
// rank 0. Where ranks are waited for in vain, rank 1 is the one.

#include <dtrun/dtrun.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <exception>
#include <string>

namespace {

// Rank 1 does not come to the second collective.
void WaitInVain(dtrun::Communicator& world, const std::string& what) {
  float data[4] = {};
  world.Barrier();
  if (world.rank() == 1) {
    // The others should be waiting by then; nothing depends on it but what they are seen doing.
    if (what == "killed") usleep(500'000), raise(SIGKILL);
    for (;;) pause();
  }
  if (what == "forgotten") {
    world.StartAllReduce(dtrun::Buffer(data, 4));
    for (;;) pause();
  }
  world.AllReduce(dtrun::Buffer(data, 4));
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  try {
    dtrun::Context job = dtrun::Init(
        what == "option" ? std::map<std::string, std::string>{{"bucket_mb", "4"}}
                         : std::map<std::string, std::string>{});
    try {
      float data[4] = {};
      if (what == "mismatch") {
        if (job.rank() == 0) job.world().Barrier();
        if (job.rank() != 0) job.world().AllReduce(dtrun::Buffer(data, 4));
      } else if (what == "twice") {
        job.Shutdown();
      } else if (what == "leave") {
        if (job.rank() == 1) return 0;
      } else if (
          what == "uncaught" || what == "absent" || what == "killed" || what == "forgotten") {
        WaitInVain(job.world(), what);
      }
      // Before Shutdown: the first rank to exit ends the others.
      if (what == "refuse" && job.rank() == 0) std::fprintf(stderr, "misbehave: refused\n");
      job.Shutdown();
      if (what == "refuse") return 66;
    } catch (const dtrun::Error& error) {
      if (what == "uncaught") std::terminate();
      if (job.rank() == 0) std::printf("%d: %s\n", static_cast<int>(error.code()), error.what());
      if (what != "twice") job.Shutdown();
    }
  } catch (const dtrun::Error& error) {
    std::printf("%d: %s\n", static_cast<int>(error.code()), error.what());
    return 2;
  }
  return 0;
}
