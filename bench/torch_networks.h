#ifndef DTRUN_BENCH_TORCH_NETWORKS_H_
#define DTRUN_BENCH_TORCH_NETWORKS_H_

#include <torch/torch.h>

#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

// The networks of torch_perf. bench/peers/torch_ddp.py has the last two as well, module by module.

// Not in dtrun, where TORCH_MODULE would find dtrun::torch.
namespace torch_networks {

namespace nn = torch::nn;
using torch::Tensor;

inline nn::Sequential Cnn() {
  return nn::Sequential(
      nn::Conv2d(1, 32, 3), nn::ReLU(), nn::Conv2d(32, 64, 3), nn::ReLU(), nn::MaxPool2d(2),
      nn::Dropout(0.25), nn::Flatten(), nn::Linear(64 * 12 * 12, 128), nn::ReLU(), nn::Dropout(0.5),
      nn::Linear(128, 10));
}

inline nn::Sequential Mlp() {
  nn::Sequential layers;
  int64_t width = 1536;
  for (int i = 0; i < 5; ++i) {
    layers->push_back(nn::Linear(width, 2048));
    layers->push_back(nn::ReLU());
    width = 2048;
  }
  layers->push_back(nn::Linear(width, 10));
  return layers;
}

inline nn::Conv2d Conv(int64_t from, int64_t to, int64_t size, int64_t stride) {
  return nn::Conv2d(nn::Conv2dOptions(from, to, size).stride(stride).padding(size / 2).bias(false));
}

/// Two 3 x 3 convolutions, and the input added to the second.
struct ResidualBlockImpl : nn::Module {
  ResidualBlockImpl(int64_t from, int64_t to, int64_t stride)
      : main(register_module(
            "main", nn::Sequential(
                        Conv(from, to, 3, stride), nn::BatchNorm2d(to), nn::ReLU(),
                        Conv(to, to, 3, 1), nn::BatchNorm2d(to)))) {
    if (from != to || stride != 1)
      shortcut = register_module(
          "shortcut", nn::Sequential(Conv(from, to, 1, stride), nn::BatchNorm2d(to)));
  }
  Tensor forward(Tensor x) {
    return torch::relu(main->forward(x) + (shortcut.is_empty() ? x : shortcut->forward(x)));
  }
  nn::Sequential main, shortcut{nullptr};
};
TORCH_MODULE(ResidualBlock);

/// ResNet-18 for images of 32 x 32: 11.2 million parameters.
inline nn::Sequential ResNet18() {
  nn::Sequential layers(Conv(3, 64, 3, 1), nn::BatchNorm2d(64), nn::ReLU());
  int64_t from = 64;
  for (const int64_t width : {64, 128, 256, 512}) {
    layers->push_back(ResidualBlock(from, width, width == 64 ? 1 : 2));
    layers->push_back(ResidualBlock(width, width, 1));
    from = width;
  }
  layers->push_back(nn::AdaptiveAvgPool2d(1));
  layers->push_back(nn::Flatten());
  layers->push_back(nn::Linear(512, 10));
  return layers;
}

/// Self-attention with 4 heads, and two dense layers, each on normalized values and added to them.
struct TransformerLayerImpl : nn::Module {
  explicit TransformerLayerImpl(int64_t width)
      : before(register_module("before", nn::LayerNorm(nn::LayerNormOptions({width})))),
        between(register_module("between", nn::LayerNorm(nn::LayerNormOptions({width})))),
        queries(register_module("queries", nn::Linear(width, 3 * width))),
        attended(register_module("attended", nn::Linear(width, width))),
        wide(register_module("wide", nn::Linear(width, 4 * width))),
        narrow(register_module("narrow", nn::Linear(4 * width, width))) {}
  Tensor forward(Tensor x) {
    constexpr int64_t kHeads = 4;
    const int64_t batch = x.size(0), length = x.size(1), each = x.size(2) / kHeads;
    const std::vector<Tensor> parts =
        queries(before(x)).view({batch, length, 3, kHeads, each}).permute({2, 0, 3, 1, 4}).unbind();
    const Tensor scores = parts[0].matmul(parts[1].transpose(2, 3)) / std::sqrt(double(each));
    const Tensor heads = torch::softmax(scores, 3).matmul(parts[2]);
    x = x + attended(heads.transpose(1, 2).reshape({batch, length, x.size(2)}));
    return x + narrow(torch::gelu(wide(between(x))));
  }
  nn::LayerNorm before, between;
  nn::Linear queries, attended, wide, narrow;
};
TORCH_MODULE(TransformerLayer);

constexpr int64_t kWords = 1024;

/// Next words from words: 12 layers of width 256, 10 million parameters.
inline nn::Sequential Transformer() {
  constexpr int64_t kWidth = 256;
  nn::Sequential layers{nn::Embedding(kWords, kWidth)};
  for (int i = 0; i < 12; ++i) layers->push_back(TransformerLayer(kWidth));
  layers->push_back(nn::LayerNorm(nn::LayerNormOptions({kWidth})));
  layers->push_back(nn::Linear(kWidth, kWords));
  layers->push_back(nn::Flatten(nn::FlattenOptions().start_dim(0).end_dim(1)));
  return layers;
}

}  // namespace torch_networks

#endif
