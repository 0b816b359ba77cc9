// A program that joins its job and leaves it, three times.

#include <dtrun/communicator.h>
#include <dtrun/context.h>
#include <dtrun/error.h>
#include <dtrun/named_queue.h>
#include <dtrun/types.h>

#include <cstdio>

namespace programs::again {

int Main(int, char**) {
  for (int time = 1; time <= 3; ++time) {
    try {
      dtrun::Context job = dtrun::Init();
      float sum = 1, named = 1;
      job.world().AllReduce(dtrun::Buffer(&sum, 1));
      dtrun::NamedQueue queue(job.world());
      queue.AllReduce("x", dtrun::Buffer(&named, 1)).Wait();
      if (job.rank() == 0) std::printf("%d: %d ranks, %g and %g\n", time, job.size(), sum, named);
      std::fflush(stdout);
      job.Shutdown();
    } catch (const dtrun::Error& error) {
      std::printf("%d: %s\n", time, error.what());
      return 0;
    }
  }
  return 0;
}

}  // namespace programs::again
