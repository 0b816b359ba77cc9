// A rank that trains with LibTorch; argv names stories. Most stories compare the results of the
// ranks with those of one process, which each rank computes as well.

#include <dtrun/torch.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/torch/stories.h"

namespace {

using namespace torch_stories;

// Trains 20 steps and compares with one process on the global batch.
void TrainBeside(Communicator& world, Zero mode, DistributedOptions options = {}) {
  Net net = MakeNet(), alone = MakeNet();
  torch::optim::SGD inner = Sgd(*net), sgd = Sgd(*alone);
  DistributedOptimizer optimizer(world, inner, *net, options);
  for (int64_t step = 0; step < 20; ++step) {
    const Batch all = GlobalBatch(world, step), mine = Mine(world, all);
    optimizer.zero_grad(mode == Zero::kNone);
    alone->zero_grad(mode == Zero::kNone);
    Tensor loss = mine.Loss(net);
    const Tensor expected = all.Loss(alone);
    (options.op == dtrun::ReduceOp::kSum ? loss / world.size() : loss).backward();
    expected.backward();
    if (step == 0) ExpectClose(GradientsOf(*net), GradientsOf(*alone), 1e-6, "the first gradient");
    Tensor mean = loss.detach() / world.size();
    dtrun::torch::AllReduce(world, mean);
    ExpectClose(mean, expected.detach(), 1e-5, "the loss");
    optimizer.step();
    sgd.step();
  }
  ExpectClose(Flat(net->parameters()), Flat(alone->parameters()), 1e-4, "the last weights");
}

// Training code that does not know of ranks.
void TrainAnything(torch::optim::Optimizer& optimizer, const std::function<Tensor()>& loss) {
  optimizer.zero_grad();
  loss().backward();
  optimizer.step();
}

// Adasum combines updates. On equal batches the ranks compute the weights of one process, with any
// optimizer. On different batches each rank keeps its own optimizer state, and all ranks have equal
// weights.
template <typename Make>
void AdasumBeside(Communicator& world, const Make& make) {
  DistributedOptions options;
  options.op = dtrun::ReduceOp::kAdasum;
  Net net = MakeNet(), alone = MakeNet();
  auto inner = make(*net), sgd = make(*alone);
  DistributedOptimizer optimizer(world, inner, *net, options);
  for (int64_t step = 0; step < 5; ++step) {
    const Batch same = GlobalBatch(world, step);
    TrainAnything(optimizer, [&] { return same.Loss(net); });
    TrainAnything(sgd, [&] { return same.Loss(alone); });
    ExpectClose(
        Flat(net->parameters()), Flat(alone->parameters()), 1e-5, "the weights of one process");
  }
  for (int64_t step = 5; step < 10; ++step) {
    const Batch mine = Mine(world, GlobalBatch(world, step));
    TrainAnything(optimizer, [&] { return mine.Loss(net); });
  }
  const Tensor weights = Flat(net->parameters()).detach();
  Tensor first = weights.clone();
  dtrun::torch::Broadcast(world, first, 0);
  Expect(torch::equal(weights, first), "the same weights on all ranks");
  Expect(!torch::equal(weights, Flat(alone->parameters())), "which have moved");
}

void Adasum(Communicator& world) {
  AdasumBeside(world, [](const torch::nn::Module& net) { return Sgd(net); });
  AdasumBeside(world, [](const torch::nn::Module& net) {
    return torch::optim::Adam(net.parameters(), torch::optim::AdamOptions(0.01));
  });
}

// One weight per rank, in every type. Each rank uses only its own weight, so adasum applies all
// steps.
void AdasumOfTypes(Communicator& world) {
  for (const auto type : {torch::kFloat16, torch::kBFloat16, torch::kFloat32, torch::kFloat64}) {
    const auto make = [&](double value) {
      return torch::full({2, 3}, value, torch::TensorOptions().dtype(type)).requires_grad_();
    };
    std::vector<Tensor> weights;
    for (int rank = 0; rank < world.size(); ++rank) weights.push_back(make(rank));
    Tensor strided = torch::zeros({3, 2}, torch::TensorOptions().dtype(type)).t();
    strided.requires_grad_();
    weights.push_back(strided);
    torch::optim::SGD inner(weights, 0.5);
    DistributedOptions options;
    options.op = dtrun::ReduceOp::kAdasum;
    DistributedOptimizer optimizer(world, inner, options);
    const auto r = static_cast<size_t>(world.rank());
    TrainAnything(optimizer, [&] {
      return (4 * weights[r].to(torch::kFloat32) + 2 * strided.to(torch::kFloat32)).sum();
    });
    for (int rank = 0; rank < world.size(); ++rank)
      Expect(
          torch::equal(weights[static_cast<size_t>(rank)], make(rank - 2).detach()),
          "a step of each rank");
    Expect(
        torch::equal(strided, torch::full_like(strided, -1)), "the mean of steps that are alike");
  }
}

void AdasumRefused(Communicator& world) {
  Net net = MakeNet();
  torch::optim::SGD inner = Sgd(*net);
  DistributedOptions options;
  options.op = dtrun::ReduceOp::kAdasum;
  ExpectError(
      [&] { DistributedOptimizer optimizer(world, inner, *net, options); },
      "adasum on 3 ranks; expected a number of ranks that is a power of two");
}

void Schedulers(Communicator& world) {
  Net net = MakeNet();
  torch::optim::SGD inner(net->parameters(), 0.1);
  DistributedOptimizer optimizer(world, inner, *net);
  const Batch mine = Mine(world, GlobalBatch(world, 0));
  torch::optim::StepLR scheduler(optimizer, 1, 0.5);
  const auto moved = [&] {  // step divided by gradient
    const Tensor before = Flat(net->parameters()).clone();
    TrainAnything(optimizer, [&] { return mine.Loss(net); });
    return (before - Flat(net->parameters())).norm().item<double>() /
           GradientsOf(*net).norm().item<double>();
  };
  const auto close = [](double a, double b) { return std::abs(a - b) < 1e-4; };
  Expect(close(moved(), 0.1), "the first rate counts");
  scheduler.step();  // LibTorch's first step has no effect
  scheduler.step();
  Expect(close(moved(), 0.05), "a scheduler of the wrapper reaches the inner optimizer");
  Expect(inner.param_groups()[0].options().get_lr() == 0.05, "the inner optimizer has the rate");

  inner.param_groups()[0].options().set_lr(0.02);  // as a scheduler attached to it does
  Expect(close(moved(), 0.02), "a rate set in the inner optimizer counts");
  Expect(optimizer.param_groups()[0].options().get_lr() == 0.02, "and shows in the wrapper");

  static_cast<torch::optim::SGDOptions&>(inner.param_groups()[0].options()).weight_decay(0.5);
  moved();
  const auto& ours = optimizer.param_groups()[0].options();
  Expect(
      static_cast<const torch::optim::SGDOptions&>(ours).weight_decay() == 0.5,
      "other options are taken over as well");

  inner.param_groups()[0].options().set_lr(0.3);
  optimizer.param_groups()[0].options().set_lr(0.4);
  ExpectError(moved, "the options of group 0 were changed in an optimizer and otherwise");
}

// An overflow skips a step. Otherwise a scaled loss trains as a plain one, with clipping and a
// scheduler. With adasum, only one rank's gradient overflows, and the ranks tell each other.
void LossScale(Communicator& world, dtrun::ReduceOp op) {
  Net net = MakeNet(), plain_net = MakeNet();
  torch::optim::SGD inner = Sgd(*net), plain = Sgd(*plain_net);
  dtrun::LossScaleOptions quick;
  quick.initial_scale = 256;
  quick.growth_interval = 3;
  dtrun::torch::LossScaleOptimizer scaled(inner, quick);
  DistributedOptions options;
  options.op = op;
  DistributedOptimizer optimizer(world, scaled, *net, options);
  DistributedOptimizer alone(world, plain, *plain_net, options);
  std::vector<double> scales;
  for (int64_t step = 0; step < 8; ++step) {
    scales.push_back(scaled.scale().scale);
    const Batch mine = Mine(world, GlobalBatch(world, step));
    optimizer.zero_grad();
    scaled.Scale(mine.Loss(net)).backward();
    const bool overflows = step == 2;
    const bool reduces = op != dtrun::ReduceOp::kAdasum;
    if (overflows && (reduces || world.rank() == 1)) {
      torch::NoGradGuard no_grad;
      net->out->weight.mutable_grad()[0][0] = std::numeric_limits<double>::quiet_NaN();
    }
    if (overflows) {
      const Tensor before = Flat(net->parameters()).clone();
      optimizer.step();
      Expect(torch::equal(Flat(net->parameters()).detach(), before.detach()), "a skipped step");
      continue;
    }
    if (step == 4) optimizer.param_groups()[0].options().set_lr(0.05);  // as a scheduler does
    if (step == 4) alone.param_groups()[0].options().set_lr(0.05);
    torch::nn::utils::clip_grad_norm_(net->parameters(), scaled.Scale(0.5));
    alone.zero_grad();
    mine.Loss(plain_net).backward();
    torch::nn::utils::clip_grad_norm_(plain_net->parameters(), 0.5);
    optimizer.step();
    alone.step();
    ExpectClose(
        Flat(net->parameters()).detach(), Flat(plain_net->parameters()).detach(), 1e-6,
        "the weights of a plain loss");
  }
  Expect(
      scales == std::vector<double>{256, 256, 256, 128, 128, 128, 256, 256}, "the scales of steps");

  torch::serialize::OutputArchive saved;
  optimizer.save(saved);
  std::stringstream file;
  saved.save_to(file);
  dtrun::torch::LossScaleOptimizer resumed(inner, quick);
  torch::serialize::InputArchive loaded;
  loaded.load_from(file);
  resumed.load(loaded);
  Expect(resumed.scale() == scaled.scale(), "a saved scale");
}

// A gradient overflows in the backward pass of one rank.
void Overflow(Communicator& world) {
  Tensor w = torch::ones({4}, torch::requires_grad());
  torch::optim::SGD inner({w}, 1.0);
  dtrun::torch::LossScaleOptimizer scaled(inner);
  DistributedOptimizer optimizer(world, scaled);
  const auto train = [&](double factor) {
    TrainAnything(optimizer, [&] { return scaled.Scale((factor * w).sum()); });
  };
  train(world.rank() == 1 ? 1e38 : 1);
  Expect(torch::equal(w.detach(), torch::ones({4})), "no rank has stepped");
  Expect(scaled.scale() == dtrun::LossScale{16384, 0, 1, 1}, "half the scale");
  train(0.5);
  Expect(torch::equal(w.detach(), torch::full({4}, 0.5)), "training goes on");

  // A tensor that is twice in a group, and a rank whose pass reaches no parameter.
  Tensor v = torch::ones({4}, torch::requires_grad());
  torch::optim::SGD descent({v}, 1.0);
  descent.param_groups()[0].params().push_back(v);
  dtrun::torch::LossScaleOptimizer twice(descent);
  DistributedOptimizer both(world, twice);
  if (world.rank() != 0) twice.Scale((v * 0.375).sum()).backward();
  both.step();
  const double moved = 2 * 0.375 * (world.size() - 1) / world.size();  // SGD steps for each entry
  ExpectClose(v.detach(), torch::full({4}, 1 - moved), 1e-6, "the unscaled gradient");

  ExpectError(
      [&] { dtrun::torch::LossScaleOptimizer outside(both); },
      "expected the LossScaleOptimizer inside the DistributedOptimizer");
  const Tensor half = torch::ones({2}, torch::kFloat16).requires_grad_();
  torch::optim::SGD narrow({w, half}, 1.0);
  ExpectError(
      [&] { dtrun::torch::LossScaleOptimizer refused(narrow); },
      "LossScaleOptimizer: parameter 1 of group 0 is f16; expected f32, f64 or bf16");
}

// A user's optimizer with options that LibTorch does not know.
struct PlainOptions : torch::optim::OptimizerCloneableOptions<PlainOptions> {
  double factor = 1;
};
struct Plain : torch::optim::Optimizer {
  explicit Plain(std::vector<Tensor> parameters)
      : Optimizer(std::move(parameters), std::make_unique<PlainOptions>()) {}
  Tensor step(LossClosure) override {
    torch::NoGradGuard no_grad;
    const auto& options = static_cast<PlainOptions&>(param_groups_[0].options());
    for (Tensor& p : param_groups_[0].params()) p -= options.factor * p.grad();
    return {};
  }
};

void OwnOptimizer(Communicator& world) {
  Tensor w = torch::zeros({3}, torch::requires_grad());
  DistributedOptimizer optimizer(world, std::make_unique<Plain>(std::vector<Tensor>{w}));
  static_cast<PlainOptions&>(optimizer.param_groups()[0].options()).factor = 2;
  TrainAnything(optimizer, [&] { return (w * (world.rank() + 1)).sum(); });
  Expect(torch::equal(w, torch::full({3}, -(world.size() + 1.0))), "its options are handed on");
}

// Parameters that a step does not use, on all ranks or on some.
void Unused(Communicator& world) {
  for (const Zero mode : {Zero::kZeroed, Zero::kNone}) {
    const auto make = [] { return std::vector<Tensor>(3, torch::ones({4})); };
    std::vector<Tensor> w = make(), alone = make();
    for (auto* list : {&w, &alone})
      for (Tensor& p : *list) p = p.clone().requires_grad_(true);
    const auto options = torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(0.5);
    torch::optim::SGD inner(w, options), sgd(alone, options);
    DistributedOptimizer optimizer(world, inner);
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad(mode == Zero::kNone);
      sgd.zero_grad();
      if (mode == Zero::kNone)
        for (Tensor& p : alone) p.mutable_grad() = Tensor();
      // w[0] is used on all ranks, w[1] on rank 1 and w[2] on none.
      Tensor loss = (w[0] * w[0]).sum();
      if (world.rank() == 1) loss = loss + 3 * w[1].sum();
      loss.backward();
      ((alone[0] * alone[0]).sum() + 3 * alone[1].sum() / world.size()).backward();
      Expect(!w[2].grad().defined(), "nobody's gradient stays undefined");
      optimizer.step();
      sgd.step();
      Expect(torch::equal(w[2], torch::ones({4})), "nobody's parameter stays as it was");
      for (size_t i = 0; i < 2; ++i)
        ExpectClose(w[i].detach(), alone[i].detach(), 1e-6, "a weight");
    }
  }
}

// zero_grad() leaves gradients of zeros. A value that a trainer adds to them counts.
void Zeros(Communicator& world) {
  torch::nn::Linear layer(3, 2);
  torch::optim::SGD sgd(layer->parameters(), 0.1);
  dtrun::torch::DistributedOptimizer optimizer(world, sgd, *layer);
  const Tensor input = torch::ones({1, 3});
  const auto backward = [&] { layer(input).sum().backward(); };  // gradients of ones
  const auto gradient = [&] { return layer->weight.grad(); };
  backward();
  optimizer.zero_grad();
  Expect(gradient().defined() && gradient().count_nonzero().item<int64_t>() == 0, "zeros");
  backward();
  Expect(gradient().eq(1).all().item<bool>(), "a gradient instead of zeros");
  optimizer.zero_grad();
  {
    torch::NoGradGuard no_grad;
    gradient().add_(2);
  }
  backward();
  Expect(gradient().eq(3).all().item<bool>(), "a gradient on top of what was written");
  optimizer.zero_grad();
  {
    const auto scope = optimizer.NoSync();
    backward(), backward();
    Expect(gradient().eq(2).all().item<bool>(), "two gradients that add up");
  }
  backward();
  Expect(gradient().eq(3).all().item<bool>(), "three gradients that add up");
  optimizer.zero_grad();
  Expect(gradient().count_nonzero().item<int64_t>() == 0, "zeros again");
  optimizer.step();  // with zeros
}

void TiedFrozenGroups(Communicator& world) {
  Net net = MakeNet(), alone = MakeNet();
  const auto groups = [](Net& of) {
    of->conv->bias.set_requires_grad(false);
    std::vector<torch::optim::OptimizerParamGroup> list;
    list.emplace_back(of->conv->parameters());
    list.emplace_back(of->hidden->parameters(), std::make_unique<torch::optim::SGDOptions>(0.01));
    return list;
  };
  torch::optim::SGD inner(groups(net), 0.1), sgd(groups(alone), 0.1);
  DistributedOptimizer optimizer(world, inner, *net);
  const Batch all = GlobalBatch(world, 0), mine = Mine(world, all);
  // The network uses one weight in two places.
  const auto tied = [](Net& of, const Batch& batch) {
    const Tensor twice =
        of->conv(torch::relu(of->conv(batch.x.expand({-1, 1, 8, 8})).mean(1, true)));
    return batch.Loss(of) + twice.square().mean();
  };
  for (int step = 0; step < 3; ++step) {
    TrainAnything(optimizer, [&] { return tied(net, mine); });
    TrainAnything(sgd, [&] { return tied(alone, all); });
    Expect(!net->conv->bias.grad().defined(), "a frozen parameter has no gradient");
  }
  ExpectClose(Flat(net->parameters()), Flat(alone->parameters()), 1e-6, "the weights");

  // A tensor that is twice in a group has one gradient.
  Tensor w = torch::ones({2}, torch::requires_grad());
  torch::optim::SGD both({{w}}, 1.0);
  both.param_groups()[0].params().push_back(w);
  DistributedOptimizer once(world, both);
  (w * (world.rank() + 1)).sum().backward();
  Expect(torch::equal(w.grad(), torch::full({2}, (world.size() + 1) / 2.0)), "reduced once");
}

void Accumulation(Communicator& world) {
  for (const Zero mode : {Zero::kZeroed, Zero::kNone}) {
    for (const bool scope : {false, true}) {
      Net net = MakeNet(), alone = MakeNet();
      torch::optim::SGD inner = Sgd(*net), sgd = Sgd(*alone);
      DistributedOptions options;
      if (!scope) options.backward_passes_per_step = 2;
      DistributedOptimizer optimizer(world, inner, *net, options);
      for (int64_t step = 0; step < 3; ++step) {
        const Batch first = GlobalBatch(world, 2 * step), second = GlobalBatch(world, 2 * step + 1);
        optimizer.zero_grad(mode == Zero::kNone);
        sgd.zero_grad();
        const auto pass = [&](const Batch& batch) { Mine(world, batch).Loss(net).backward(); };
        if (scope) {
          const auto no_sync = optimizer.NoSync();
          pass(first);
          ExpectError([&] { optimizer.step(); }, "step() inside a NoSync scope");
        } else {
          pass(first);
        }
        pass(second);
        first.Loss(alone).backward();
        second.Loss(alone).backward();
        ExpectClose(GradientsOf(*net), GradientsOf(*alone), 1e-6, "the sum of two passes");
        optimizer.step();
        sgd.step();
      }
    }
  }
}

void Closure(Communicator& world) {
  Net net = MakeNet(), alone = MakeNet();
  torch::optim::Adam inner(net->parameters(), 0.01), adam(alone->parameters(), 0.01);
  DistributedOptimizer optimizer(world, inner, *net);
  const Batch all = GlobalBatch(world, 0), mine = Mine(world, all);
  for (int step = 0; step < 3; ++step) {
    torch::NoGradGuard no_grad;
    Tensor loss = optimizer.step([&] {
      optimizer.zero_grad();
      Tensor result = mine.Loss(net);
      result.backward();
      return result;
    });
    dtrun::torch::AllReduce(world, loss, dtrun::ReduceOp::kAverage);
    adam.zero_grad();
    const Tensor expected = adam.step([&] {
      Tensor result = all.Loss(alone);
      result.backward();
      return result;
    });
    ExpectClose(loss.detach(), expected.detach(), 1e-5, "the loss of the closure");
  }
}

// Gradients are final when backward() returns, so clipping works as in one process.
void Clipping(Communicator& world) {
  Net net = MakeNet(), alone = MakeNet();
  torch::optim::SGD inner = Sgd(*net), sgd = Sgd(*alone);
  DistributedOptimizer optimizer(world, inner, *net);
  for (int64_t step = 0; step < 3; ++step) {
    const Batch all = GlobalBatch(world, step);
    optimizer.zero_grad();
    sgd.zero_grad();
    Mine(world, all).Loss(net).backward();
    all.Loss(alone).backward();
    torch::nn::utils::clip_grad_norm_(net->parameters(), 0.1);
    torch::nn::utils::clip_grad_norm_(alone->parameters(), 0.1);
    optimizer.step();
    sgd.step();
  }
  ExpectClose(Flat(net->parameters()), Flat(alone->parameters()), 1e-5, "the weights");
}

// A step without backward() does not hang, and the next step works.
void NoBackward(Communicator& world) {
  Net net = MakeNet();
  torch::optim::SGD inner = Sgd(*net);
  DistributedOptimizer optimizer(world, inner, *net);
  const Tensor before = Flat(net->parameters()).clone();
  optimizer.step();
  Expect(torch::equal(before, Flat(net->parameters())), "a step without backward changes nothing");

  const Batch all = GlobalBatch(world, 0);
  Mine(world, all).Loss(net).backward();
  optimizer.zero_grad(true);  // the trainer discards this step
  if (world.rank() == 0) Mine(world, all).Loss(net).backward();
  optimizer.step();  // ranks without a gradient take part here
  const Tensor mine = GradientsOf(*net);
  Tensor first = mine.clone();
  dtrun::torch::Broadcast(world, first, 0);
  Expect(torch::equal(mine, first), "all ranks have the gradient of the one that had one");
}

void SecondPass(Communicator& world) {
  Net net = MakeNet();
  torch::optim::SGD inner = Sgd(*net);
  DistributedOptimizer optimizer(world, inner, *net);
  const Batch mine = Mine(world, GlobalBatch(world, 0));
  const auto backward = [&] { mine.Loss(net).backward(); };
  backward();
  const std::string text =
      "backward() reached parameter 'out.bias', whose gradient this step has already reduced "
      "(after 1 pass); call step() or zero_grad() before, set backward_passes_per_step";
  ExpectError(backward, text);
  const Tensor before = Flat(net->parameters()).clone();
  ExpectError([&] { optimizer.step(); }, text);
  Expect(torch::equal(before, Flat(net->parameters())), "nothing was updated");
  optimizer.zero_grad();
  backward();
  optimizer.step();
  Expect(!torch::equal(before, Flat(net->parameters())), "the next step is a good one");
}

// A backward pass that fails on all ranks. step() finishes the reductions that had begun.
void FailedPass(Communicator& world) {
  torch::nn::Embedding table(torch::nn::EmbeddingOptions(5, 3).sparse(true));
  Tensor w = torch::ones({3}, torch::requires_grad());
  std::vector<Tensor> parameters = table->parameters();
  parameters.push_back(w);
  torch::optim::SGD inner(parameters, 0.1);
  DistributedOptimizer optimizer(world, inner);
  const std::string text =
      "the gradient of parameter 'group 0, parameter 0' has layout Sparse; expected a dense one";
  const auto backward = [&] { (table(torch::tensor({1, 2})) * w).sum().backward(); };
  ExpectError(backward, text);
  ExpectError([&] { optimizer.step(); }, text);
  Expect(torch::equal(w.detach(), torch::ones({3})), "nothing was updated");
  optimizer.zero_grad(true);
  w.sum().backward();
  optimizer.step();
  Expect(torch::equal(w.detach(), torch::full({3}, 0.9f)), "the next step is a good one");
}

void GroupErrors(Communicator& world) {
  Net net = MakeNet();
  net->conv->bias.set_requires_grad(false);
  torch::optim::SGD inner(net->conv->parameters(), 0.1);
  DistributedOptimizer optimizer(world, inner, *net);
  const auto step = [&] { optimizer.step(); };
  net->conv->bias.set_requires_grad(true);
  ExpectError(step, "parameter 'conv.bias' was frozen when the optimizer was wrapped");
  net->conv->bias.set_requires_grad(false);
  step();
  optimizer.add_param_group(torch::optim::OptimizerParamGroup(net->out->parameters()));
  ExpectError(step, "parameter 'out.weight' [3, 16] was added after the optimizer was wrapped");
  optimizer.param_groups().pop_back();
  step();
  inner.param_groups()[0].params().push_back(net->out->bias);
  ExpectError(step, "parameter 'out.bias' [3] was added after the optimizer was wrapped");
}

void Refusals(Communicator& world) {
  const auto wrap = [&](const Tensor& parameter, DistributedOptions options = {}) {
    torch::optim::SGD inner({parameter}, 0.1);
    DistributedOptimizer optimizer(world, inner, options);
  };
  const Tensor good = torch::ones({2}, torch::requires_grad());
  torch::optim::LBFGS lbfgs({good}, 1);
  ExpectError([&] { DistributedOptimizer(world, lbfgs); }, "LBFGS takes several gradients");
  ExpectError(
      [&] { DistributedOptimizer(world, std::unique_ptr<torch::optim::SGD>()); },
      "the inner optimizer is null");
  ExpectError(
      [&] { wrap(torch::ones({2}, torch::dtype(torch::kComplexFloat)).requires_grad_(true)); },
      "parameter 'group 0, parameter 0' has elements of type ComplexFloat; expected f16, bf16");
  ExpectError(
      [&] { wrap(torch::empty({2}, torch::device(torch::kMeta)).requires_grad_(true)); },
      "parameter 'group 0, parameter 0' lies on meta; expected the CPU");
  DistributedOptions options;
  options.op = dtrun::ReduceOp::kMax;
  ExpectError([&] { wrap(good, options); }, "op is max; expected average, sum or adasum");
  options = {};
  options.backward_passes_per_step = 0;
  ExpectError([&] { wrap(good, options); }, "backward_passes_per_step is 0; expected 1 or more");

  torch::optim::SGD inner({good}, 0.1);
  DistributedOptimizer optimizer(world, inner);
  const auto create_graph = [&] { (good * good).sum().backward({}, c10::nullopt, true); };
  ExpectError(create_graph, "has a graph of its own (create_graph)");
  ExpectError([&] { optimizer.step(); }, "has a graph of its own (create_graph)");

  Net net = MakeNet();
  torch::optim::SGD sgd = Sgd(*net);
  DistributedOptimizer wrapped(world, sgd, *net);
  net->to(torch::kFloat64);
  Batch batch = Mine(world, GlobalBatch(world, 0));
  batch.x = batch.x.to(torch::kFloat64);
  ExpectError(
      [&] {
        batch.Loss(net).backward();
        wrapped.step();
      },
      "is Double[3]; when it was wrapped it was Float[3]");

  const std::string matrix = "all_reduce: the tensor ";
  const auto all_reduce = [&](const Tensor& t) { dtrun::torch::AllReduce(world, t); };
  ExpectError([&] { all_reduce(Tensor()); }, matrix + "is undefined");
  ExpectError([&] { all_reduce(torch::ones({2}).to_sparse()); }, matrix + "has layout Sparse");
  ExpectError([&] { all_reduce(torch::empty({2}, torch::kMeta)); }, matrix + "lies on meta");
  ExpectError(
      [&] { all_reduce(torch::ones({2}, torch::kComplexFloat)); }, "has elements of type Complex");
}

void DifferentModels(Communicator& world) {
  torch::nn::Linear layer(4, world.rank() == 1 ? 3 : 2);
  torch::optim::SGD inner(layer->parameters(), 0.1);
  DistributedOptimizer optimizer(world, inner, *layer);
}

void DifferentShapes(Communicator& world) {  // with equal numbers of elements
  torch::nn::Linear layer(world.rank() == 1 ? 2 : 4, world.rank() == 1 ? 4 : 2);
  layer->bias.set_requires_grad(false);
  torch::optim::SGD inner(layer->parameters(), 0.1);
  DistributedOptimizer optimizer(world, inner, *layer);
}

void DifferentBroadcast(Communicator& world) {
  torch::nn::Linear layer(4, world.rank() == 1 ? 3 : 2);
  dtrun::torch::BroadcastParameters(world, *layer);
}

void Types(Communicator& world) {
  for (const auto type : {torch::kBFloat16, torch::kFloat16, torch::kFloat32, torch::kFloat64}) {
    Tensor w = torch::ones({1000}, torch::dtype(type).requires_grad(true));
    torch::optim::SGD inner({w}, 0.5);
    DistributedOptimizer optimizer(world, inner);
    for (int step = 0; step < 2; ++step) {
      optimizer.zero_grad(step == 0);
      (w * (world.rank() + 1)).sum().backward();
      const double mean = (world.size() + 1) / 2.0;
      Expect(torch::equal(w.grad(), torch::full({1000}, mean, type)), "the average");
      optimizer.step();
    }
  }
}

// Memory that is not row-major: a parameter in channels-last order, a parameter with gaps, and a
// gradient in another order than its parameter.
void Strides(Communicator& world) {
  const auto make = [] {
    torch::manual_seed(3);
    return std::vector<Tensor>{
        torch::randn({2, 3, 4, 5}).contiguous(torch::MemoryFormat::ChannelsLast),
        torch::randn({6, 8}).index({torch::indexing::Slice(), torch::indexing::Slice(0, 8, 2)}),
        torch::randn({5, 7})};
  };
  std::vector<Tensor> w = make();
  for (Tensor& p : w) p.requires_grad_(true);
  torch::optim::SGD inner(w, 0.1);
  DistributedOptimizer optimizer(world, inner);
  const float mine = static_cast<float>(world.rank() + 1);
  const float mean = static_cast<float>(world.size() + 1) / 2;
  for (const bool none : {true, false}) {
    optimizer.zero_grad(none);
    if (none) w[2].mutable_grad() = (2 * mine * w[2].detach()).t().contiguous().t();  // by hand
    ((w[0] * w[0]).sum() * mine + (w[1] * w[1]).sum() * mine).backward();
    for (size_t i = 0; i < (none ? 3u : 2u); ++i)
      ExpectClose(w[i].grad(), 2 * mean * w[i].detach(), 1e-6, "a gradient");
    Expect(w[0].grad().strides() == w[0].strides(), "the strides are the parameter's");
    optimizer.step();
  }
}

struct WithNormImpl : torch::nn::Module {
  WithNormImpl() { norm = register_module("norm", torch::nn::BatchNorm1d(3)); }
  Tensor forward(const Tensor& x) { return norm(x); }
  torch::nn::BatchNorm1d norm{nullptr};
};
TORCH_MODULE(WithNorm);

void Buffers(Communicator& world) {
  WithNorm net;
  {
    torch::NoGradGuard no_grad;
    net->norm->running_mean.fill_(world.rank() + 5);
    net->norm->weight.fill_(world.rank() + 5);
    net->norm->num_batches_tracked.fill_(world.rank() + 5);
  }
  torch::optim::SGD inner(net->parameters(), 0.1);
  DistributedOptions options;
  options.sync_buffers = true;
  DistributedOptimizer optimizer(world, inner, *net, options);
  Expect(net->norm->running_mean[0].item<float>() == 5, "buffers start from rank 0's");
  Expect(net->norm->weight[0].item<float>() == 5, "parameters start from rank 0's");
  Expect(net->norm->num_batches_tracked.item<int64_t>() == 5, "whole numbers too");
  torch::manual_seed(static_cast<uint64_t>(world.rank()));
  net(torch::randn({10, 3})).square().sum().backward();
  optimizer.step();
  Tensor first = net->norm->running_mean.clone();
  dtrun::torch::Broadcast(world, first);
  Expect(torch::equal(first, net->norm->running_mean), "they are rank 0's after a step");
}

// Gradients are reduced as f16 and keep their own type.
void InSixteenBits(Communicator& world) {
  Tensor weight = torch::ones({5}).set_requires_grad(true);
  Tensor wide = torch::ones({3}, torch::kDouble).set_requires_grad(true);
  torch::optim::SGD inner({weight, wide}, 0.1);
  DistributedOptions options;
  options.op = dtrun::ReduceOp::kSum;
  options.first_bucket_bytes = 64;
  options.wire = dtrun::Wire::kF16;
  DistributedOptimizer optimizer(world, inner, options);
  for (int step = 0; step < 2; ++step) {
    optimizer.zero_grad();
    ((weight * 1.0001).sum() + (wide * 1.0001).sum()).backward();  // 1 in f16
    Expect(
        torch::equal(weight.grad(), torch::full({5}, static_cast<float>(world.size()))),
        "the sum of rounded gradients");
    Expect(
        torch::equal(wide.grad(), torch::full({3}, world.size(), torch::kDouble)),
        "and of doubles");
    optimizer.step();
  }
}

// Sends whole numbers and keeps the error for the next step.
class Rounded : public dtrun::WireFormat {
 public:
  std::string name() const override { return "rounded"; }
  dtrun::DType dtype() const override { return dtrun::DType::kF32; }
  uint64_t Count(size_t bucket, const dtrun::Buffer& gradients) override {
    lost_[bucket].assign(gradients.count, 0);
    return gradients.count;
  }
  void Compress(size_t bucket, const dtrun::Buffer& from, const dtrun::Buffer& wire) override {
    for (uint64_t k = 0; k < wire.count; ++k) {
      const float value = static_cast<const float*>(from.data)[k] + lost_[bucket][k];
      const float sent = std::round(value);
      static_cast<float*>(wire.data)[k] = sent;
      lost_[bucket][k] = value - sent;
    }
  }
  void Decompress(size_t, const dtrun::Buffer& wire, const dtrun::Buffer& to) override {
    std::memcpy(to.data, wire.data, wire.bytes());
  }

 private:
  std::map<size_t, std::vector<float>> lost_;  // by bucket
};

void InOwnFormat(Communicator& world) {
  Tensor weight = torch::ones({5}).set_requires_grad(true);
  torch::optim::SGD inner({weight}, 0.1);
  DistributedOptions options;
  options.op = dtrun::ReduceOp::kSum;
  options.wire_format = std::make_shared<Rounded>();
  DistributedOptimizer optimizer(world, inner, options);
  float sum = 0;
  for (int step = 0; step < 4; ++step) {
    optimizer.zero_grad();
    (weight * 0.4).sum().backward();
    sum += weight.grad()[0].item<float>();
    optimizer.step();
  }
  // With the error of the step before, 0.4 becomes 0.4, 0.8, 0.2 and 0.6: sent as 0, 1, 0 and 1.
  Expect(sum == 2.F * static_cast<float>(world.size()), "the error of a step goes into the next");
}

// Rank 0 has trained and sends its state to ranks that have not.
template <typename Optimizer, typename Options>
void CheckState(Communicator& world, Options options, const std::string& name) {
  Net net = MakeNet(), alone = MakeNet();
  Optimizer inner(net->parameters(), options), reference(alone->parameters(), options);
  const Batch all = GlobalBatch(world, 0), mine = Mine(world, all);
  const auto train = [](Net& of, torch::optim::Optimizer& optimizer, const Batch& batch) {
    TrainAnything(optimizer, [&] { return batch.Loss(of); });
  };
  for (int step = 0; step < 2; ++step) {
    train(alone, reference, all);
    if (world.rank() == 0) train(net, inner, all);
  }
  if (world.rank() == 0) inner.param_groups()[0].options().set_lr(0.001);
  reference.param_groups()[0].options().set_lr(0.001);
  DistributedOptimizer optimizer(world, inner, *net);
  dtrun::torch::BroadcastOptimizerState(world, optimizer);
  for (int step = 0; step < 2; ++step) {
    train(alone, reference, all);
    train(net, optimizer, mine);
  }
  ExpectClose(Flat(net->parameters()), Flat(alone->parameters()), 1e-5, name.c_str());

  // A root without state clears the state of the other ranks.
  Tensor w = torch::ones({2}, torch::requires_grad());
  Optimizer fresh(std::vector<Tensor>{w}, options);
  if (world.rank() != 0) {
    w.sum().backward();
    fresh.step();
  }
  dtrun::torch::BroadcastOptimizerState(world, fresh);
  Expect(fresh.state().empty() || world.rank() == 0, name + ": the root's state is none");
}

void States(Communicator& world) {
  using namespace torch::optim;
  CheckState<SGD>(world, SGDOptions(0.1).momentum(0.9), "SGD");
  CheckState<Adam>(world, AdamOptions(0.01).amsgrad(true), "Adam");
  CheckState<AdamW>(world, AdamWOptions(0.01), "AdamW");
  CheckState<RMSprop>(world, RMSpropOptions(0.01).momentum(0.5), "RMSprop");
}

void StateOfAdagrad(Communicator& world) {  // Adagrad has state from the start
  torch::optim::AdagradOptions options(0.01);
  Net net = MakeNet();
  torch::optim::Adagrad inner(net->parameters(), options);
  const Batch mine = Mine(world, GlobalBatch(world, 0));
  if (world.rank() == 0) TrainAnything(inner, [&] { return mine.Loss(net); });
  DistributedOptimizer optimizer(world, inner, *net);
  dtrun::torch::BroadcastOptimizerState(world, optimizer);
  TrainAnything(optimizer, [&] { return mine.Loss(net); });
  Tensor first = Flat(net->parameters()).detach().clone();
  dtrun::torch::Broadcast(world, first);
  Expect(torch::equal(first, Flat(net->parameters())), "all ranks have the same weights");

  std::stringstream file;
  torch::save(optimizer, file);
  torch::optim::Adagrad other(net->parameters(), options);
  torch::load(other, file);
  Expect(other.state().size() == inner.state().size(), "the wrapper saves the inner state");
  file.seekg(0);
  inner.state().clear();
  torch::load(optimizer, file);
  Expect(other.state().size() == inner.state().size(), "and loads it");
}

void Sampler(Communicator& world) {
  using dtrun::torch::DistributedSampler;
  using dtrun::torch::Remainder;
  const size_t p = static_cast<size_t>(world.size()), size = 10 * p + 1;
  const auto epoch_of = [&](DistributedSampler& sampler) {
    std::vector<int64_t> mine;
    while (const auto batch = sampler.next(4))
      mine.insert(mine.end(), batch->begin(), batch->end());
    return dtrun::torch::AllGather(world, torch::tensor(mine, torch::kLong));
  };
  DistributedSampler sampler(world, size, {/*shuffle=*/true, /*seed=*/3, Remainder::kRepeat});
  const Tensor first = epoch_of(sampler);
  Expect(first.numel() == static_cast<int64_t>(11 * p), "as many on every rank");
  Expect(std::get<0>(torch::_unique(first)).numel() == static_cast<int64_t>(size), "all of them");
  sampler.reset();
  Expect(sampler.epoch() == 1, "the next pass is the next epoch");
  const Tensor second = epoch_of(sampler);
  Expect(!torch::equal(first, second), "in another order");
  sampler.set_epoch(0);
  Expect(torch::equal(first, epoch_of(sampler)), "an epoch has its order");

  sampler.set_epoch(1);
  const auto drawn = sampler.next(5);
  std::stringstream file;
  torch::serialize::OutputArchive saved;
  sampler.save(saved);
  saved.save_to(file);
  DistributedSampler resumed(world, size, {true, 3, Remainder::kRepeat});
  torch::serialize::InputArchive loaded;
  loaded.load_from(file);
  resumed.load(loaded);
  Expect(resumed.next(3) == sampler.next(3), "a saved one goes on where it was");

  DistributedSampler uneven(world, size, {false, 0, Remainder::kUneven});
  Expect(uneven.local_size() == (world.rank() == 0 ? 11u : 10u), "the first rank gets the rest");
  const Tensor all = std::get<0>(epoch_of(uneven).sort());
  Expect(torch::equal(all, torch::arange(static_cast<int64_t>(size))), "each exactly once");
  DistributedSampler dropped(world, size, {false, 0, Remainder::kDrop});
  Expect(dropped.local_size() == 10, "the rest is left out");
  const auto batch = dropped.next(2);
  Expect((*batch)[1] == static_cast<size_t>(world.rank()) + p, "every p-th is mine");

  // The sampler in a data loader.
  struct Numbers : torch::data::datasets::Dataset<Numbers> {
    torch::data::Example<> get(size_t i) override {
      return {torch::tensor(static_cast<int64_t>(i)), torch::tensor(0)};
    }
    c10::optional<size_t> size() const override { return 8; }
  };
  auto loader = torch::data::make_data_loader(
      Numbers().map(torch::data::transforms::Stack<>()), DistributedSampler(world, 8), 2);
  for (int epoch = 0; epoch < 2; ++epoch) {
    int64_t seen = 0;
    for (auto& example : *loader) seen += example.data.size(0);
    Expect(seen == (8 + world.size() - 1) / world.size(), "a loader sees this rank's share");
  }
}

void Tensors(Communicator& world) {
  const int rank = world.rank(), p = world.size();
  Tensor sum = torch::full({3, 4}, rank + 1).t();  // not contiguous
  dtrun::torch::AllReduce(world, sum);
  Expect(torch::equal(sum, torch::full({4, 3}, p * (p + 1) / 2)), "the sum of a transposed tensor");
  Tensor leaf = torch::full({2}, static_cast<float>(rank), torch::requires_grad());
  dtrun::torch::Broadcast(world, leaf, p - 1);
  Expect(
      torch::equal(leaf.detach(), torch::full({2}, static_cast<float>(p - 1))),
      "a parameter of the last rank");

  const Tensor rows = torch::full({rank + 1, 2}, rank, torch::kBool);
  const Tensor all = dtrun::torch::AllGather(world, rows);
  Expect(all.size(0) == p * (p + 1) / 2 && all.size(1) == 2, "rows of all ranks");
  Expect(!all[0][0].item<bool>() && all[1][0].item<bool>(), "in rank order");
  const Tensor scalars = dtrun::torch::AllGather(world, torch::tensor(rank + 0.5));
  Expect(scalars.sizes() == at::IntArrayRef{p} && scalars[1].item<double>() == 1.5, "scalars");
  ExpectError(
      [&] {
        dtrun::torch::AllGather(world, torch::ones({2, rank == 1 ? 3 : 2}));
      },
      "all_gather: the ranks differ in tensor 0: f32 rows of [2] on rank");
}

// A gradient outlives the optimizer that reduced it.
void Afterwards(Communicator& world) {
  Net net = MakeNet();
  torch::optim::SGD inner = Sgd(*net);
  const Batch mine = Mine(world, GlobalBatch(world, 0));
  Tensor gradient;
  {
    DistributedOptimizer optimizer(world, inner, *net);
    TrainAnything(optimizer, [&] { return mine.Loss(net); });
    gradient = GradientsOf(*net);
  }
  Expect(torch::equal(gradient, GradientsOf(*net)), "it stays");
  mine.Loss(net).backward();  // this rank alone, more than once
  mine.Loss(net).backward();
  inner.step();
}

const Stories kStories = {
    {"zeroed", [](Communicator& world) { TrainBeside(world, Zero::kZeroed); }},
    {"none", [](Communicator& world) { TrainBeside(world, Zero::kNone); }},
    {"sum",
     [](Communicator& world) {
       DistributedOptions options;
       options.op = dtrun::ReduceOp::kSum;
       options.bucket_bytes = 100;
       TrainBeside(world, Zero::kNone, options);
     }},
    {"adasum", Adasum},
    {"adasum_of_types", AdasumOfTypes},
    {"adasum_refused", AdasumRefused},
    {"schedulers", Schedulers},
    {"loss_scale", [](Communicator& world) { LossScale(world, dtrun::ReduceOp::kAverage); }},
    {"loss_scale_adasum", [](Communicator& world) { LossScale(world, dtrun::ReduceOp::kAdasum); }},
    {"overflow", Overflow},
    {"own_optimizer", OwnOptimizer},
    {"unused", Unused},
    {"zeros", Zeros},
    {"tied_frozen_groups", TiedFrozenGroups},
    {"accumulation", Accumulation},
    {"closure", Closure},
    {"clipping", Clipping},
    {"no_backward", NoBackward},
    {"second_pass", SecondPass},
    {"failed_pass", FailedPass},
    {"group_errors", GroupErrors},
    {"refusals", Refusals},
    {"different_models", DifferentModels},
    {"different_shapes", DifferentShapes},
    {"different_broadcast", DifferentBroadcast},
    {"types", Types},
    {"strides", Strides},
    {"wire", InSixteenBits},
    {"own_wire", InOwnFormat},
    {"buffers", Buffers},
    {"states", States},
    {"state_of_adagrad", StateOfAdagrad},
    {"sampler", Sampler},
    {"tensors", Tensors},
    {"afterwards", Afterwards},
};

}  // namespace

// The stories on the simulated GPU are another program, by its name: it starts with SimulateCuda.
int main(int argc, char** argv) {
#ifdef DTRUN_TESTS_WITH_GPU
  if (std::string(argv[0]).ends_with("torch_gpu_ranks"))
    return torch_stories::RunStories(argc, argv, torch_stories::GpuStories());
#endif
  if (argc == 4 && std::string(argv[1]) == "elastic")
    return torch_stories::TrainSharded(argv[2], std::stoull(argv[3]));
  Stories all = kStories;
  all.merge(torch_stories::LargeStories());
  all.merge(torch_stories::MemoryStories());
  all.merge(torch_stories::ModelStories());
  return torch_stories::RunStories(argc, argv, all);
}
