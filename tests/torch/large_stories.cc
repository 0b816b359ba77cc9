// Stories of torch_ranks.cc with large gradients. Each large gradient has its own bucket, and
// autograd creates it in memory that the ranks share.

#include <dtrun/torch.h>

#include <cstdint>
#include <fstream>
#include <functional>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "tests/torch/stories.h"

namespace {

using namespace torch_stories;

constexpr int64_t kWidth = 520;  // 1 MiB of weights

// Two layers of equal size, an optional third layer of that size, and a small layer.
struct WideImpl : torch::nn::Module {
  WideImpl() {
    for (torch::nn::Linear* layer : {&first, &second, &spare})
      *layer = torch::nn::Linear(kWidth, kWidth);
    out = torch::nn::Linear(kWidth, 3);
    register_module("first", first);
    register_module("second", second);
    register_module("spare", spare);
    register_module("out", out);
  }
  Tensor forward(const Tensor& x) {
    Tensor y = torch::tanh(second(torch::tanh(first(x))));
    if (use_spare) y = torch::tanh(spare(y));
    return out(y);
  }
  bool use_spare = true;
  torch::nn::Linear first{nullptr}, second{nullptr}, spare{nullptr}, out{nullptr};
};
TORCH_MODULE(Wide);

Wide MakeWide() {
  torch::manual_seed(7);
  return Wide();
}

DistributedOptions LargeAlone() {
  DistributedOptions options;
  options.bucket_bytes = 1 << 20;
  return options;
}

Tensor Rows(const Communicator& world, int64_t step, bool all) {
  torch::manual_seed(100 + static_cast<uint64_t>(step));
  const Tensor x = torch::randn({4 * world.size(), kWidth});
  return all ? x : x.index({torch::indexing::Slice(4 * world.rank(), 4 * world.rank() + 4)});
}

Tensor LossOf(Wide& net, const Tensor& x) { return net(x).square().mean(); }

// Whether a tensor lies in memory of dtrun that other ranks map.
bool IsShared(const Tensor& tensor) {
  const auto address = reinterpret_cast<uintptr_t>(tensor.data_ptr());
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    std::istringstream words(line);
    uintptr_t begin = 0, end = 0;
    char dash = 0;
    words >> std::hex >> begin >> dash >> end;
    if (begin <= address && address < end) return line.find("memfd:dtrun") != std::string::npos;
  }
  return false;
}

using ZeroGrad = std::function<void(DistributedOptimizer&, Wide&)>;

void TrainLargeBeside(Communicator& world, const ZeroGrad& zero_grad, bool first_is_shared) {
  Wide net = MakeWide(), alone = MakeWide();
  torch::optim::SGD inner = Sgd(*net), sgd = Sgd(*alone);
  DistributedOptimizer optimizer(world, inner, *net, LargeAlone());
  for (int64_t step = 0; step < 6; ++step) {
    zero_grad(optimizer, net);
    alone->zero_grad();
    LossOf(net, Rows(world, step, false)).backward();
    LossOf(alone, Rows(world, step, true)).backward();
    ExpectClose(GradientsOf(*net), GradientsOf(*alone), 1e-5, "the gradient");
    Expect(IsShared(net->first->weight.grad()), "a gradient is in shared memory");
    if (step == 0 && first_is_shared)
      Expect(IsShared(net->spare->weight.grad()), "the first gradient too");
    Expect(!IsShared(alone->first->weight.grad()), "those of others are not");
    optimizer.step();
    sgd.step();
  }
  ExpectClose(Flat(net->parameters()), Flat(alone->parameters()), 1e-4, "the last weights");
}

void OwnZeroed(Communicator& world) {
  TrainLargeBeside(
      world, [](auto& optimizer, auto&) { optimizer.zero_grad(); }, true);
}
void OwnNone(Communicator& world) {
  TrainLargeBeside(
      world, [](auto& optimizer, auto&) { optimizer.zero_grad(true); }, true);
}
void OfTheModule(Communicator& world) {
  TrainLargeBeside(
      world, [](auto&, auto& net) { net->zero_grad(true); }, false);
}
void ZeroedByModule(Communicator& world) {
  TrainLargeBeside(
      world, [](auto&, auto& net) { net->zero_grad(false); }, false);
}

// Gradients of earlier steps keep their values even when all places in shared memory are taken.
void Kept(Communicator& world) {
  Wide net = MakeWide();
  torch::optim::SGD inner = Sgd(*net);
  std::vector<Tensor> kept, copies;
  {
    DistributedOptimizer optimizer(world, inner, *net, LargeAlone());
    for (int64_t step = 0; step < 4; ++step) {
      optimizer.zero_grad(true);
      LossOf(net, Rows(world, step, false)).backward();
      for (const Tensor& parameter : net->parameters()) {
        if (parameter.numel() < kWidth * kWidth) continue;  // a small gradient keeps its place
        kept.push_back(parameter.grad());
        copies.push_back(parameter.grad().clone());
      }
      optimizer.step();
    }
  }
  for (size_t i = 0; i < kept.size(); ++i)
    Expect(torch::equal(kept[i], copies[i]), "gradient " + std::to_string(i) + " stayed");
  std::set<void*> places;
  for (const Tensor& gradient : kept) places.insert(gradient.data_ptr());
  Expect(places.size() == kept.size(), "each has memory of its own");
}

// A layer that all ranks use, only rank 0 uses, or no rank uses.
void Spare(Communicator& world) {
  Wide net = MakeWide(), alone = MakeWide();
  torch::optim::SGD inner = Sgd(*net), sgd = Sgd(*alone);
  DistributedOptimizer optimizer(world, inner, *net, LargeAlone());
  for (int64_t step = 0; step < 6; ++step) {
    const bool by_rank_0 = step % 3 != 2, by_others = step % 3 == 0;
    optimizer.zero_grad(step % 2 == 0);
    alone->zero_grad();
    net->use_spare = world.rank() == 0 ? by_rank_0 : by_others;
    LossOf(net, Rows(world, step, false)).backward();
    for (int rank = 0; rank < world.size(); ++rank) {  // the passes of all ranks
      alone->use_spare = rank == 0 ? by_rank_0 : by_others;
      const auto rows = torch::indexing::Slice(4 * rank, 4 * rank + 4);
      (LossOf(alone, Rows(world, step, true).index({rows})) / world.size()).backward();
    }
    optimizer.Synchronize();
    const Tensor& gradient = net->spare->weight.grad();
    if (!by_rank_0) {
      Expect(!gradient.defined() || gradient.abs().max().item<float>() == 0, "nobody has it");
    } else {
      ExpectClose(
          gradient, alone->spare->weight.grad(), 1e-5,
          ("the gradient of the spare layer in step " + std::to_string(step)).c_str());
    }
    ExpectClose(net->first->weight.grad(), alone->first->weight.grad(), 1e-5, "the gradient");
    optimizer.step();
    sgd.step();
    for (Tensor& parameter : alone->spare->parameters()) parameter.mutable_grad().reset();
  }
}

void Accumulated(Communicator& world) {
  Wide net = MakeWide(), alone = MakeWide();
  torch::optim::SGD inner = Sgd(*net);
  DistributedOptions options = LargeAlone();
  options.backward_passes_per_step = 2;
  DistributedOptimizer optimizer(world, inner, *net, options);
  for (int64_t step = 0; step < 3; ++step) {
    optimizer.zero_grad(step == 1);
    alone->zero_grad();
    for (int64_t pass = 0; pass < 2; ++pass) {
      {
        auto scope = optimizer.NoSync();
        LossOf(net, Rows(world, 50 + pass, false)).backward();
      }
      LossOf(net, Rows(world, pass, false)).backward();
      LossOf(alone, Rows(world, 50 + pass, true)).backward();
      LossOf(alone, Rows(world, pass, true)).backward();
    }
    ExpectClose(GradientsOf(*net), GradientsOf(*alone), 1e-5, "the sum of the passes");
    optimizer.Synchronize();
    optimizer.step();
    torch::NoGradGuard no_grad;
    for (size_t i = 0; i < net->parameters().size(); ++i)
      alone->parameters()[i].copy_(net->parameters()[i]);
  }
}

// Two models of equal size, each with its own optimizer.
void TwoModels(Communicator& world) {
  Wide one = MakeWide(), two = MakeWide(), alone = MakeWide();
  torch::optim::SGD inner_one = Sgd(*one), inner_two = Sgd(*two), sgd = Sgd(*alone);
  DistributedOptimizer first(world, inner_one, *one, LargeAlone());
  auto second = std::make_unique<DistributedOptimizer>(world, inner_two, *two, LargeAlone());
  for (int64_t step = 0; step < 4; ++step) {
    first.zero_grad();
    second->zero_grad();
    alone->zero_grad();
    // One backward pass through both models.
    (LossOf(one, Rows(world, step, false)) + LossOf(two, Rows(world, step, false))).backward();
    LossOf(alone, Rows(world, step, true)).backward();
    ExpectClose(GradientsOf(*one), GradientsOf(*alone), 1e-5, "the gradient of the first");
    ExpectClose(GradientsOf(*two), GradientsOf(*alone), 1e-5, "the gradient of the second");
    first.step();
    second->step();
    sgd.step();
  }
  const Tensor gradient = GradientsOf(*two);
  second.reset();
  Expect(torch::equal(gradient, GradientsOf(*two)), "gradients outlive their optimizer");
  ExpectClose(Flat(one->parameters()), Flat(alone->parameters()), 1e-4, "the last weights");
}

}  // namespace

torch_stories::Stories torch_stories::LargeStories() {
  return {
      {"own_zeroed", OwnZeroed},
      {"own_none", OwnNone},
      {"of_the_module", OfTheModule},
      {"zeroed_by_module", ZeroedByModule},
      {"kept", Kept},
      {"spare", Spare},
      {"accumulated", Accumulated},
      {"two_models", TwoModels},
  };
}
