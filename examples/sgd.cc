#include <dtrun/dtrun.h>

#include <cstdio>
#include <vector>

// Plain gradient descent, as any trainer may have it: knows nothing of ranks.
struct Sgd : dtrun::Optimizer {
  std::vector<float> weights{5, -3};
  std::vector<dtrun::Parameter> list{{"weights", dtrun::Buffer(weights.data(), 2), {}}};
  std::vector<dtrun::Parameter>& parameters() override { return list; }
  std::vector<dtrun::NamedBuffer> state() override { return {}; }
  void Step() override {
    for (int i = 0; i < 2; ++i) weights[i] -= 0.1f * static_cast<float*>(list[0].gradient.data)[i];
  }
};

int main() {
  dtrun::Context job = dtrun::Init();  // this process becomes a rank
  Sgd sgd;                             // your optimizer ...
  dtrun::DistributedOptimizer optimizer(
      job.world(), sgd);  // ... now steps on everybody's gradients
  dtrun::BroadcastParameters(job.world(), sgd.parameters());  // start from rank 0's weights
  auto* gradient = static_cast<float*>(sgd.list[0].gradient.data);
  for (int step = 0; step < 100; ++step) {
    const float target = 1.0f + static_cast<float>(job.rank());  // every rank has data of its own
    for (int i = 0; i < 2; ++i)
      gradient[i] = sgd.weights[i] - target;  // backward, straight into shared memory
    optimizer.Step();                         // all-reduce, then the update
  }
  if (job.rank() == 0) std::printf("%d ranks agree on %.3f\n", job.size(), sgd.weights[0]);
  job.Shutdown();
}
