#include <dtrun/dtrun.h>

#include <cstdio>

struct Sgd : dtrun::Optimizer {
  float weight = 5;
  std::vector<dtrun::Parameter> list{{"weight", dtrun::Buffer(&weight, 1), {}}};
  std::vector<dtrun::Parameter>& parameters() override { return list; }
  std::vector<dtrun::NamedBuffer> state() override { return {}; }
  void Step() override { weight -= 0.1f * *static_cast<float*>(list[0].gradient.data); }
};

int main() {
  Sgd sgd;
  dtrun::Elastic elastic;
  elastic.Keep(sgd);                      // parameters and state survive lost ranks
  elastic.Run([&](dtrun::Context& job) {  // called again after each loss
    dtrun::DistributedOptimizer optimizer(job.world(), sgd);
    dtrun::BroadcastParameters(job.world(), sgd.parameters());
    for (; elastic.step() < 100; elastic.EndStep()) {
      float* gradient = static_cast<float*>(sgd.list[0].gradient.data);
      *gradient = sgd.weight - static_cast<float>(job.rank());
      optimizer.Step();
    }
    if (job.rank() == 0) std::printf("%d ranks agree on %.3f\n", job.size(), sgd.weight);
  });
}
