// A rank that trains for about six seconds. Rank 1 is slow in each step. Every rank prints a line
// after each tenth step. With an argument, the ranks call ReportProgress.

#include <dtrun/context.h>
#include <dtrun/gradient_reducer.h>
#include <dtrun/types.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <vector>

namespace programs::uneven {

int Main(int argc, char**) {
  dtrun::Context job = dtrun::Init();
  std::vector<float> gradient(1000);
  dtrun::GradientReducer reducer(job.world(), {{"w", {gradient.data(), gradient.size()}}});
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(6);
  for (int step = 1;; ++step) {
    if (job.rank() == 1) usleep(50'000);
    reducer.Wait();
    if (argc > 1) job.ReportProgress(static_cast<uint64_t>(step), 32 * static_cast<uint64_t>(step));
    if (step % 10 == 0) std::printf("line %d of rank %d\n", step, job.rank());
    int over = std::chrono::steady_clock::now() > end ? 1 : 0;
    job.world().Broadcast(dtrun::Buffer(&over, 1), 0);
    if (over != 0) break;
  }
  job.Shutdown();
  return 0;
}

}  // namespace programs::uneven
