// A LibTorch trainer that survives lost ranks. With the lines marked [elastic], `dtrun --restarts`
// starts a lost rank again and training continues with the next step.
//
//   dtrun -np 2 --restarts 10 bazel-bin/examples/torch_elastic

#include <dtrun/torch.h>
#include <torch/torch.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <vector>

namespace {

constexpr int64_t kExamples = 1000, kInputs = 16;
constexpr size_t kBatch = 10;  // of each rank

void Train(uint64_t steps) {
  torch::manual_seed(1);
  const torch::Tensor inputs = torch::randn({kExamples, kInputs});
  const torch::Tensor targets = inputs.pow(2).sum(1, /*keepdim=*/true);
  torch::nn::Sequential model(
      torch::nn::Linear(kInputs, 32), torch::nn::ReLU(), torch::nn::Dropout(0.1),
      torch::nn::Linear(32, 1));
  torch::optim::Adam adam(model->parameters(), 1e-2);
  dtrun::Elastic elastic;                     // [elastic]
  dtrun::torch::Keep(elastic, *model, adam);  // [elastic]
  elastic.Run([&](dtrun::Context& job) {      // [elastic] was: dtrun::Context job = dtrun::Init();
    dtrun::torch::DistributedOptimizer optimizer(job.world(), adam, *model);
    dtrun::torch::DistributedSampler sampler(job.world(), kExamples);
    sampler.seek(elastic.step(), kBatch);                // [elastic]
    for (; elastic.step() < steps; elastic.EndStep()) {  // [elastic] was: for (step = 0; ...
      torch::manual_seed(elastic.step() * 1000 + static_cast<uint64_t>(job.rank()));  // [elastic]
      auto batch = sampler.next(kBatch);
      if (!batch) {
        sampler.reset();
        batch = sampler.next(kBatch);
      }
      const std::vector<int64_t> rows(batch->begin(), batch->end());
      const torch::Tensor index = torch::tensor(rows, torch::kInt64);
      optimizer.zero_grad();
      torch::mse_loss(model->forward(inputs.index_select(0, index)), targets.index_select(0, index))
          .backward();
      optimizer.step();
    }
    torch::NoGradGuard no_grad;
    model->eval();
    const auto loss = torch::mse_loss(model->forward(inputs), targets).item<double>();
    model->train();
    if (job.rank() == 0) std::printf("loss after %d steps %.9g\n", static_cast<int>(steps), loss);
  });  // [elastic] was: job.Shutdown();
}

}  // namespace

int main(int argc, char** argv) {
  try {
    Train(argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 200);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "torch_elastic: %s\n", error.what());
    return 1;
  }
}
