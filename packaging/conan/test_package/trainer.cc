// Every rank brings its number; all of them get the sum.
#include <dtrun/dtrun.h>

#include <cstdio>

int main() {
  dtrun::Context job = dtrun::Init();
  float sum = static_cast<float>(job.rank() + 1);
  job.world().AllReduce(dtrun::Buffer(&sum, 1), dtrun::ReduceOp::kSum);
  if (job.rank() == 0) std::printf("%d ranks, sum %.0f\n", job.size(), sum);
  const int expected = job.size() * (job.size() + 1) / 2;
  job.Shutdown();
  return sum == static_cast<float>(expected) ? 0 : 1;
}
