// A training that survives lost ranks, with the state of its optimizer spread over them.

#include <dtrun/torch.h>
#include <torch/torch.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>

#include "tests/torch/stories.h"

namespace torch_stories {
namespace {

namespace optim = torch::optim;
using Groups = dtrun::torch::ShardedOptimizer::Groups;

std::unique_ptr<optim::Optimizer> Make(const std::string& kind, const Groups& groups) {
  if (kind == "adam")
    return std::make_unique<optim::Adam>(groups, optim::AdamOptions(0.01).amsgrad(true));
  if (kind == "adamw") return std::make_unique<optim::AdamW>(groups, optim::AdamWOptions(0.01));
  if (kind == "momentum")
    return std::make_unique<optim::SGD>(groups, optim::SGDOptions(0.01).momentum(0.9));
  if (kind == "sgd") return std::make_unique<optim::SGD>(groups, optim::SGDOptions(0.01));
  if (kind == "rmsprop")
    return std::make_unique<optim::RMSprop>(
        groups, optim::RMSpropOptions(0.001).centered(true).momentum(0.5));
  if (kind == "adagrad") return std::make_unique<optim::Adagrad>(groups, 0.01);
  return std::make_unique<optim::LBFGS>(groups, optim::LBFGSOptions());
}

uint64_t Digest(const torch::nn::Sequential& model) {
  uint64_t digest = 14695981039346656037u;
  const auto add = [&](const Tensor& tensor) {
    const auto* bytes = static_cast<const unsigned char*>(tensor.data_ptr());
    for (size_t i = 0; i < tensor.nbytes(); ++i) digest = (digest ^ bytes[i]) * 1099511628211u;
  };
  for (const Tensor& parameter : model->parameters()) add(parameter);
  for (const Tensor& buffer : model->buffers()) add(buffer);
  return digest;
}

}  // namespace

// All ranks compute the same batch, so that the number of ranks, a power of two, changes no bit.
int TrainSharded(const std::string& kind, uint64_t steps) {
  at::set_num_threads(1);
  torch::manual_seed(1);
  torch::nn::Sequential model(
      torch::nn::Linear(8, 16), torch::nn::BatchNorm1d(16), torch::nn::ReLU(),
      torch::nn::Linear(16, 1));
  dtrun::Elastic elastic;
  try {
    elastic.Run([&](dtrun::Context& job) {
      dtrun::torch::ShardedOptimizer sharded(
          job.world(), Groups{optim::OptimizerParamGroup(model->parameters())},
          [&](const Groups& groups) { return Make(kind, groups); });
      DistributedOptions options;
      options.sync_buffers = false;
      DistributedOptimizer optimizer(job.world(), sharded, *model, options);
      dtrun::torch::Keep(elastic, *model, sharded);
      for (; elastic.step() < steps; elastic.EndStep()) {
        torch::manual_seed(elastic.step());
        const Tensor x = torch::randn({12, 8});
        if (elastic.step() == steps / 4)  // kept with the state
          for (auto& group : optimizer.param_groups()) group.options().set_lr(0.002);
        optimizer.zero_grad();
        (model->forward(x) - x.sum(1, /*keepdim=*/true)).pow(2).mean().backward();
        optimizer.step();
        // Until dtrun has seen the step, so that each fault is a loss of its own.
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        job.ReportProgress(elastic.step() + 1, 0);
      }
      if (job.rank() == 0)
        std::printf(
            "%llu steps, digest %016llx\n", static_cast<unsigned long long>(steps),
            static_cast<unsigned long long>(Digest(model)));
    });
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
  return 0;
}

}  // namespace torch_stories
