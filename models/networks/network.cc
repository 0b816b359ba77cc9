#include "models/networks/network.h"

#include <dtrun/error.h>

#include <algorithm>

#include "models/layers/activations.h"
#include "models/layers/batch_norm.h"
#include "models/layers/conv2d.h"
#include "models/layers/dense.h"
#include "models/layers/pooling.h"
#include "models/layers/residual.h"
#include "models/message_text.h"

namespace dtrun::models {
namespace {

constexpr Activation kRelu = Activation::kRelu;

int Or(int given, int otherwise) { return given > 0 ? given : otherwise; }

Shape ImageOf(const NetworkOptions& options) {
  const int edge = Or(options.image, 28);
  return {edge, edge, 1};
}

Network NetworkA(const NetworkOptions& o) {
  return {
      "A",
      ImageOf(o),
      Layers(
          Conv2D(32, 3, kRelu), MaxPool2D(2), Conv2D(64, 3, kRelu), MaxPool2D(2), Dense(64, kRelu),
          Dense(Or(o.classes, 10))),
      {.batch_size = 64, .epochs = 10}};
}

Network NetworkB(const NetworkOptions& o) {
  return {
      "B",
      ImageOf(o),
      Layers(Conv2D(32, 3, kRelu), MaxPool2D(2), Dense(64, kRelu), Dense(Or(o.classes, 10))),
      {.learning_rate = {{0, 1e-3}, {3, 1e-4}, {7, 1e-5}}, .batch_size = 64, .epochs = 12}};
}

Network NetworkCWithRecipe(const NetworkOptions& o) {
  return {"C", ImageOf(o), NetworkC(Or(o.classes, 10)), {.batch_size = 1024, .epochs = 8}};
}

// The examples are flat. The network reshapes them to images.
Network NetworkD(const NetworkOptions& o) {
  const Shape image = ImageOf(o);
  return {
      "D",
      {1, 1, static_cast<int>(image.count())},
      Layers(Reshape(image), Conv2D(32, 3, kRelu), Dense(128, kRelu), Dense(Or(o.classes, 10))),
      {.optimizer = "sgd",
       .learning_rate = {{0, 1e-3}},
       .batch_size = 64,
       .epochs = 3,
       .steps_per_epoch = 70}};
}

Network Mlp(const NetworkOptions& o) {
  return {
      "mlp",
      ImageOf(o),
      Layers(Flatten(), Dense(128, kRelu), Dropout(0.2), Dense(Or(o.classes, 10))),
      {.batch_size = 64, .epochs = 5}};
}

// Has the stem for small images and the recipe of section 4.2 of the paper by K. He et al.
Network NetworkResNet18(const NetworkOptions& o) {
  const int edge = Or(o.image, 32);
  ResNetOptions options;
  options.bottleneck = false;
  options.small_images = true;
  options.blocks = {2, 2, 2, 2};
  options.classes = Or(o.classes, 10);
  options.synchronized = o.synchronized;
  options.kernel_l2 = 0.5e-4;
  return {
      "resnet18",
      {edge, edge, 3},
      ResNet(options),
      {.optimizer = "sgd",
       .momentum = 0.9,
       .learning_rate = {{0, 0.1}, {82, 0.01}, {123, 0.001}},
       .batch_size = 128,
       .epochs = 164},
      true};
}

// P. Goyal et al., "Accurate, large minibatch SGD", 2017, sections 2.3 and 5.1: the learning rate
// is 0.1 per 256 examples, divided by 10 at epochs 30, 60 and 80.
Network NetworkResNet50(const NetworkOptions& o) {
  constexpr double kRate = 0.1 * 32 / 256;
  const int edge = Or(o.image, 224);
  ResNetOptions options;
  options.classes = Or(o.classes, 1000);
  options.synchronized = o.synchronized;
  options.kernel_l2 = 0.5e-4;  // equals a weight decay of 1e-4
  return {
      "resnet50",
      {edge, edge, 3},
      ResNet(options),
      {.optimizer = "sgd",
       .momentum = 0.9,
       .learning_rate = {{0, kRate}, {30, kRate / 10}, {60, kRate / 100}, {80, kRate / 1000}},
       .batch_size = 32,
       .epochs = 90},
      true};
}

struct Row {
  std::string name;
  Network (*make)(const NetworkOptions&);
  bool normalizes = false;
};

const std::vector<Row>& Rows() {
  static const std::vector<Row> rows = {
      {"A", NetworkA},
      {"B", NetworkB},
      {"C", NetworkCWithRecipe},
      {"D", NetworkD},
      {"mlp", Mlp},
      {"resnet18", NetworkResNet18, true},
      {"resnet50", NetworkResNet50, true}};
  return rows;
}

void CheckOptions(const Row& row, const NetworkOptions& options) {
  if (options.classes < 0)
    RefuseArgument(Text("network ", row.name, ": needs at least 1 class, got ", options.classes));
  if (options.image < 0)
    RefuseArgument(
        Text("network ", row.name, ": needs images of at least 1x1, got ", options.image));
  if (options.synchronized && !row.normalizes)
    RefuseArgument(
        Text("network ", row.name, ": has no batch normalisation that could be synchronised"));
}

}  // namespace

double Recipe::RateOfEpoch(uint64_t epoch) const {
  double rate = 0;
  for (const RateFromEpoch& from : learning_rate) {
    if (from.epoch <= epoch) rate = from.rate;
  }
  return rate;
}

const std::vector<std::string>& NetworkNames() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> list;
    for (const Row& row : Rows()) list.push_back(row.name);
    return list;
  }();
  return names;
}

Network NetworkByName(const std::string& name, const NetworkOptions& options) {
  std::string known;
  for (const Row& row : Rows()) {
    known += Text(known.empty() ? "" : ", ", row.name);
    if (row.name != name) continue;
    CheckOptions(row, options);
    return row.make(options);
  }
  RefuseArgument(Text("network '", name, "' is not known, expected one of ", known));
}

SequentialOptions OptionsFor(const Network& network, uint64_t share, uint64_t seed) {
  SequentialOptions options;
  options.seed = seed;
  const auto examples = static_cast<int>(std::max<uint64_t>(share, 1));
  options.micro_batch = std::min(options.micro_batch, examples);
  const int all = (examples + options.micro_batch - 1) / options.micro_batch;
  options.micro_batches = network.needs_whole_share ? all : std::min(options.micro_batches, all);
  return options;
}

namespace {

// Momentum and epsilon are those that the paper's authors published.
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

// If the main path changes the shape, the shortcut must change it too.
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
