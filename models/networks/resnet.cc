#include "models/networks/resnet.h"

#include "models/layers/batch_norm.h"
#include "models/layers/conv2d.h"
#include "models/layers/dense.h"
#include "models/layers/global_average_pool2d.h"
#include "models/layers/max_pool2d.h"
#include "models/layers/residual.h"

namespace dtrun::models {
namespace {

// Momentum and epsilon as the paper's authors published them.
BatchNorm Norm(const ResNetOptions& options, Activation activation, float initial_gamma = 1) {
  return BatchNorm(
      {.momentum = 0.9,
       .epsilon = 1e-5,
       .activation = activation,
       .synchronized = options.synchronized,
       .initial_gamma = initial_gamma});
}

Conv2D Convolution(const ResNetOptions& options, int filters, int size, int stride) {
  return Conv2D(
      filters, size,
      {.stride = stride,
       .padding = Padding::Pixels(size / 2),
       .use_bias = false,
       .kernel_initializer = Initializer::kHeNormal,
       .kernel_l2 = options.kernel_l2});
}

LayerList MainPath(const ResNetOptions& options, int width, int stride) {
  if (!options.bottleneck)
    return Layers(
        Convolution(options, width, 3, stride), Norm(options, Activation::kRelu),
        Convolution(options, width, 3, 1), Norm(options, Activation::kNone, 0));
  return Layers(
      Convolution(options, width, 1, 1), Norm(options, Activation::kRelu),
      Convolution(options, width, 3, stride), Norm(options, Activation::kRelu),
      Convolution(options, 4 * width, 1, 1), Norm(options, Activation::kNone, 0));
}

// Where a block changes the shape, its shortcut has to as well.
Residual Block(const ResNetOptions& options, int width, int stride, bool projects) {
  LayerList shortcut;
  if (projects) {
    const int filters = options.bottleneck ? 4 * width : width;
    shortcut = Layers(Convolution(options, filters, 1, stride), Norm(options, Activation::kNone));
  }
  return Residual(MainPath(options, width, stride), std::move(shortcut), Activation::kRelu);
}

LayerList Stem(const ResNetOptions& options) {
  if (options.small_images)
    return Layers(Convolution(options, options.width, 3, 1), Norm(options, Activation::kRelu));
  return Layers(
      Convolution(options, options.width, 7, 2), Norm(options, Activation::kRelu),
      MaxPool2D({.size = 3, .stride = 2, .padding = Padding::Pixels(1)}));
}

}  // namespace

LayerList ResNet(const ResNetOptions& options) {
  LayerList layers = Stem(options);
  int width = options.width;
  for (size_t stage = 0; stage < options.blocks.size(); ++stage, width *= 2) {
    for (int block = 0; block < options.blocks[stage]; ++block) {
      const int stride = stage > 0 && block == 0 ? 2 : 1;
      const bool projects = block == 0 && (stage > 0 || options.bottleneck);
      layers.push_back(std::make_unique<Residual>(Block(options, width, stride, projects)));
    }
  }
  layers.push_back(std::make_unique<GlobalAveragePool2D>());
  layers.push_back(
      std::make_unique<Dense>(options.classes, DenseOptions{.kernel_l2 = options.kernel_l2}));
  return layers;
}

}  // namespace dtrun::models
