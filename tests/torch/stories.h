#ifndef DTRUN_TESTS_TORCH_STORIES_H_
#define DTRUN_TESTS_TORCH_STORIES_H_

#include <dtrun/torch.h>

#include <cstdint>
#include <cstdio>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

// Common parts of the programs that run stories about training with LibTorch.

namespace torch_stories {

using dtrun::Communicator;
using dtrun::Error;
using dtrun::torch::DistributedOptimizer;
using dtrun::torch::DistributedOptions;

using ::torch::Tensor;

inline void Expect(bool holds, const std::string& what) {
  if (!holds) throw std::runtime_error("not true: " + what);
}

// Checks that `call` throws an Error with a text that contains `part`.
template <typename Call>
void ExpectError(const Call& call, const std::string& part) {
  try {
    call();
  } catch (const Error& error) {
    const std::string text = error.what();
    Expect(text.find(part) != std::string::npos, "'" + text + "' contains '" + part + "'");
    return;
  }
  throw std::runtime_error("no error; expected: " + part);
}

inline double RelativeDistance(const Tensor& a, const Tensor& b) {
  return ((a.to(::torch::kFloat64) - b.to(::torch::kFloat64)).norm() /
          b.to(::torch::kFloat64).norm())
      .item<double>();
}

inline void ExpectClose(
    const Tensor& found, const Tensor& expected, double tolerance, const char* what) {
  Expect(found.defined() && expected.defined(), std::string(what) + " is defined");
  const double distance = RelativeDistance(found, expected);
  Expect(distance <= tolerance, std::string(what) + " is " + std::to_string(distance) + " off");
}

struct NetImpl : ::torch::nn::Module {
  NetImpl() {
    conv = register_module("conv", ::torch::nn::Conv2d(::torch::nn::Conv2dOptions(1, 4, 3)));
    hidden = register_module("hidden", ::torch::nn::Linear(4 * 6 * 6, 16));
    out = register_module("out", ::torch::nn::Linear(16, 3));
  }
  Tensor forward(Tensor x) {
    x = ::torch::relu(conv(x)).flatten(1);
    return out(::torch::tanh(hidden(x)));
  }
  ::torch::nn::Conv2d conv{nullptr};
  ::torch::nn::Linear hidden{nullptr}, out{nullptr};
};
TORCH_MODULE(Net);

// A model with the same weights on every rank and in the reference of one process.
inline Net MakeNet() {
  ::torch::manual_seed(7);
  return Net();
}

constexpr int64_t kPerRank = 6;

struct Batch {
  Tensor x, y;
  Tensor Loss(Net& net) const { return ::torch::nn::functional::cross_entropy(net(x), y); }
};

inline Batch GlobalBatch(const Communicator& world, int64_t step) {
  ::torch::manual_seed(100 + static_cast<uint64_t>(step));
  const int64_t n = kPerRank * world.size();
  const Tensor x = ::torch::randn({n, 1, 8, 8});
  return {x, ::torch::randint(3, {n})};
}

inline Batch Mine(const Communicator& world, const Batch& all) {
  const auto rows =
      ::torch::indexing::Slice(world.rank() * kPerRank, (world.rank() + 1) * kPerRank);
  return {all.x.index({rows}), all.y.index({rows})};
}

inline Tensor Flat(const std::vector<Tensor>& tensors) {
  std::vector<Tensor> parts;
  for (const Tensor& tensor : tensors) parts.push_back(tensor.reshape({-1}));
  return ::torch::cat(parts);
}

inline Tensor GradientsOf(const ::torch::nn::Module& module) {
  std::vector<Tensor> gradients;
  for (const Tensor& parameter : module.parameters()) gradients.push_back(parameter.grad());
  return Flat(gradients).clone();
}

inline ::torch::optim::SGD Sgd(const ::torch::nn::Module& module, double rate = 0.1) {
  return ::torch::optim::SGD(
      module.parameters(), ::torch::optim::SGDOptions(rate).momentum(0.9).weight_decay(0.01));
}

enum class Zero { kZeroed, kNone };

using Stories = std::map<std::string, std::function<void(Communicator&)>>;

Stories LargeStories();   ///< large_stories.cc
Stories MemoryStories();  ///< memory_stories.cc
Stories ModelStories();   ///< model_stories.cc
Stories GpuStories();  ///< gpu_stories.cc, only with the CUDA toolkit; simulates CUDA from here on

/// Trains with ShardedOptimizer around an optimizer of this kind and prints a digest. Survives lost
/// ranks. Returns the exit code.
int TrainSharded(const std::string& kind, uint64_t steps);  ///< elastic_stories.cc

/// Runs the stories that argv names. For each story, prints "<rank>: <story> ok" or the failed
/// check. For a story that ends in an error of dtrun, prints "<rank>: <code>: <text>".
inline int RunStories(int argc, char** argv, const Stories& stories) {
  at::set_num_threads(1);
  dtrun::Context job = dtrun::Init();
  int result = 0;
  for (int i = 1; i < argc; ++i) {
    try {
      stories.at(argv[i])(job.world());
      std::printf("%d: %s ok\n", job.rank(), argv[i]);
    } catch (const Error& error) {
      std::printf("%d: %d: %s\n", job.rank(), static_cast<int>(error.code()), error.what());
    } catch (const std::exception& error) {
      std::printf("%d: %s: %s\n", job.rank(), argv[i], error.what());
      result = 1;
    }
  }
  job.Shutdown();
  return result;
}

}  // namespace torch_stories

#endif
