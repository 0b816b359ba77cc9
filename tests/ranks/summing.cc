// A rank that prints its process id and then all-reduces in argv[1] steps of 20 ms. Rank 0 prints
// the sum.

#include <dtrun/communicator.h>
#include <dtrun/context.h>
#include <dtrun/types.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

namespace programs::summing {

int Main(int argc, char** argv) {
  dtrun::Context job = dtrun::Init();
  std::printf("%d\n", static_cast<int>(getpid()));
  std::fflush(stdout);
  const int steps = argc > 1 ? std::atoi(argv[1]) : 1;
  float sum = 0;
  for (int step = 0; step < steps; ++step) {
    float data[2] = {static_cast<float>(job.rank() + 1), 1};
    job.world().AllReduce(dtrun::Buffer(data, 2));
    sum += data[0] * data[1];
    usleep(20'000);
  }
  if (job.rank() == 0) std::printf("sum %.1f\n", static_cast<double>(sum));
  job.Shutdown();
  return 0;
}

}  // namespace programs::summing
