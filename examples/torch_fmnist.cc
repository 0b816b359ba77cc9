// A convolutional network on Fashion-MNIST with LibTorch. With the six lines marked [dtrun], it
// trains on any number of ranks. Without them, it is a program of one process.
//
//   dtrun -np 2 bazel-bin/examples/torch_fmnist --steps 200

#include <dtrun/torch.h>  // [dtrun]
#include <torch/torch.h>
#include <zlib.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

struct NetworkImpl : torch::nn::Module {
  NetworkImpl() {
    conv1 = register_module("conv1", torch::nn::Conv2d(1, 32, 3));
    conv2 = register_module("conv2", torch::nn::Conv2d(32, 64, 3));
    dense1 = register_module("dense1", torch::nn::Linear(64 * 12 * 12, 128));
    dense2 = register_module("dense2", torch::nn::Linear(128, 10));
  }

  torch::Tensor forward(torch::Tensor x) {  // (N, 1, 28, 28)
    x = torch::relu(conv2(torch::relu(conv1(x))));
    x = torch::dropout(torch::max_pool2d(x, 2), 0.25, is_training());
    x = torch::relu(dense1(x.flatten(1)));
    return dense2(torch::dropout(x, 0.5, is_training()));  // (N, 10)
  }

  torch::nn::Conv2d conv1{nullptr}, conv2{nullptr};
  torch::nn::Linear dense1{nullptr}, dense2{nullptr};
};
TORCH_MODULE(Network);

// Reads an IDX file, gzipped or not, after its header of `header` bytes.
torch::Tensor ReadIdx(const std::string& path, int header, at::IntArrayRef sizes) {
  torch::Tensor bytes = torch::empty(sizes, torch::kUInt8);
  gzFile file = gzopen(path.c_str(), "rb");
  if (file == nullptr) throw std::runtime_error("cannot open " + path);
  const unsigned count = static_cast<unsigned>(bytes.numel());
  const bool whole = gzseek(file, header, SEEK_SET) == header &&
                     gzread(file, bytes.data_ptr(), count) == static_cast<int>(count);
  gzclose(file);
  if (!whole) throw std::runtime_error(path + " is shorter than expected");
  return bytes;
}

struct Data {
  torch::Tensor images, labels;  // (N, 28, 28) u8, (N) u8
  Data(const std::string& folder, const std::string& name, int64_t n)
      : images(ReadIdx(folder + "/" + name + "-images-idx3-ubyte.gz", 16, {n, 28, 28})),
        labels(ReadIdx(folder + "/" + name + "-labels-idx1-ubyte.gz", 8, {n})) {}

  torch::Tensor Images(const torch::Tensor& index) const {
    return images.index_select(0, index).unsqueeze(1).to(torch::kFloat32) / 255;
  }
  torch::Tensor Labels(const torch::Tensor& index) const {
    return labels.index_select(0, index).to(torch::kInt64);
  }
};

double AccuracyOf(Network& network, const Data& data) {
  torch::NoGradGuard no_grad;
  network->eval();
  const torch::Tensor index = torch::arange(2000);
  const torch::Tensor found = network(data.Images(index)).argmax(1);
  return found.eq(data.Labels(index)).to(torch::kFloat64).mean().item<double>();
}

void Train(const std::string& folder, int64_t steps, size_t batch_size) {
  dtrun::Context job = dtrun::Init();  // [dtrun]
  const Data data(folder, "train", 60000);
  Network network;
  dtrun::torch::DistributedOptimizer optimizer(  // [dtrun] was: torch::optim::Adam optimizer(
      job.world(), std::make_unique<torch::optim::Adam>(network->parameters(), 1e-3), *network);
  dtrun::torch::DistributedSampler sampler(job.world(), 60000);  // [dtrun] was: RandomSampler
  for (int64_t step = 1; step <= steps; ++step) {
    auto batch = sampler.next(batch_size);
    if (!batch) {
      sampler.reset();
      batch = sampler.next(batch_size);
    }
    const std::vector<int64_t> rows(batch->begin(), batch->end());
    const torch::Tensor index = torch::tensor(rows, torch::kInt64);
    optimizer.zero_grad();
    torch::Tensor loss =
        torch::nn::functional::cross_entropy(network(data.Images(index)), data.Labels(index));
    loss.backward();
    optimizer.step();
    if (job.rank() != 0 || (step % 50 != 0 && step != steps)) continue;  // [dtrun] one rank speaks
    std::printf("step %ld: loss %.3f\n", static_cast<long>(step), loss.item<double>());
    if (step == steps) {
      const double accuracy = AccuracyOf(network, Data(folder, "t10k", 10000));
      std::printf("accuracy on 2000 test images %.3f\n", accuracy);
    }
    std::fflush(stdout);
  }
  job.Shutdown();  // [dtrun]
}

}  // namespace

int main(int argc, char** argv) {
  std::string folder = "/usr/share/datasets/fashion-mnist";
  int64_t steps = 1000;
  size_t batch_size = 64;  // of each rank
  for (int i = 1; i < argc; i += 2) {
    const std::string option = argv[i];
    const std::string value = i + 1 < argc ? argv[i + 1] : "";
    if (option == "--data-dir" && !value.empty()) {
      folder = value;
    } else if (option == "--steps" && std::atol(value.c_str()) > 0) {
      steps = std::atol(value.c_str());
    } else if (option == "--batch-size" && std::atol(value.c_str()) > 0) {
      batch_size = static_cast<size_t>(std::atol(value.c_str()));
    } else {
      std::fprintf(
          stderr, "usage: torch_fmnist [--steps N] [--batch-size N] [--data-dir FOLDER]\n");
      return 2;
    }
  }
  try {
    Train(folder, steps, batch_size);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "torch_fmnist: %s\n", error.what());
    return 1;
  }
}
