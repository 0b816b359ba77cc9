#include <dtrun/dtrun.h>

#include <cstdio>

struct Sgd : dtrun::Optimizer {  // your optimizer: no code about ranks
  float weight = 5;
  // Name, value, gradient. {}: DistributedOptimizer allocates the gradient.
  std::vector<dtrun::Parameter> list{{"weight", dtrun::Buffer(&weight, 1), {}}};
  std::vector<dtrun::Parameter>& parameters() override { return list; }
  std::vector<dtrun::NamedBuffer> state() override { return {}; }
  void Step() override { weight -= 0.1f * *static_cast<float*>(list[0].gradient.data); }
};

int main() {
  dtrun::Context job = dtrun::Init();  // this process is a rank now
  Sgd sgd;
  dtrun::DistributedOptimizer optimizer(job.world(), sgd);
  dtrun::BroadcastParameters(job.world(), sgd.parameters());  // start from rank 0's weights
  for (int step = 0; step < 100; ++step) {
    float* gradient = static_cast<float*>(sgd.list[0].gradient.data);
    *gradient = sgd.weight - static_cast<float>(job.rank());  // backward, on this rank's own data
    optimizer.Step();                                         // all-reduce, then sgd.Step()
  }
  if (job.rank() == 0) std::printf("%d ranks agree on %.3f\n", job.size(), sgd.weight);
  job.Shutdown();
}
