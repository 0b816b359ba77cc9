// A rank of a job that trains for about six seconds, in which rank 1 takes long for its own part of
// each step. Every rank writes a line now and then. With an argument it reports its examples.

#include <dtrun/dtrun.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <vector>

int main(int argc, char**) {
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
