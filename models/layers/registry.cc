#include "models/layers/registry.h"

#include <dtrun/error.h>

#include "models/layers/activations.h"
#include "models/layers/batch_norm.h"
#include "models/layers/conv2d.h"
#include "models/layers/dense.h"
#include "models/layers/pooling.h"
#include "models/layers/residual.h"
#include "models/layers/settings.h"
#include "models/message_text.h"

namespace dtrun::models {
namespace {

// Limits of the settings in a file. They are far above any real network, and the product of two
// limits fits in a size_t.
constexpr int kMostChannels = 1 << 16;
constexpr int kMostUnits = 1 << 20;
constexpr int kMostPixels = 1 << 7;  // side of a window

double L2Of(const LayerSettings& s) { return s.Has("kernel_l2") ? s.Number("kernel_l2") : 0; }

Initializer InitializerOf(const LayerSettings& s) {
  if (!s.Has("kernel_initializer")) return Initializer::kGlorotUniform;
  const bool he = s.OneOf("kernel_initializer", {"glorot_uniform", "he_normal"}) == "he_normal";
  return he ? Initializer::kHeNormal : Initializer::kGlorotUniform;
}

std::unique_ptr<Layer> MakeConv2D(const LayerSettings& s) {
  const int filters = s.Int("filters", 1, kMostChannels);
  const Window window = WindowOf(s, "kernel_size", kMostPixels);
  return std::make_unique<Conv2D>(
      filters, window.size,
      Conv2DOptions{
          .stride = window.stride,
          .padding = window.padding,
          .activation = ActivationOf(s),
          .use_bias = !s.Has("use_bias") || s.Flag("use_bias"),
          .kernel_initializer = InitializerOf(s),
          .kernel_l2 = L2Of(s)});
}

// If the settings have no strides, windows lie side by side.
Window PoolOf(const LayerSettings& s, int most) {
  const int size = s.Int("pool_size", 1, most);
  return WindowOf(s, "pool_size", most, {size, size});
}

std::unique_ptr<Layer> MakeMaxPool2D(const LayerSettings& s) {
  return std::make_unique<MaxPool2D>(PoolOf(s, 15));
}

std::unique_ptr<Layer> MakeAveragePool2D(const LayerSettings& s) {
  return std::make_unique<AveragePool2D>(PoolOf(s, kMostPixels));
}

std::unique_ptr<Layer> MakeReshape(const LayerSettings& s) {
  return std::make_unique<Reshape>(Shape{
      s.Int("height", 1, kMostChannels), s.Int("width", 1, kMostChannels),
      s.Int("channels", 1, kMostChannels)});
}

std::unique_ptr<Layer> MakeBatchNorm(const LayerSettings& s) {
  return std::make_unique<BatchNorm>(BatchNormOptions{
      .momentum = s.Number("momentum"),
      .epsilon = s.Number("epsilon"),
      .activation = ActivationOf(s),
      .synchronized = s.Flag("synchronized"),
      .initial_gamma = static_cast<float>(s.Number("initial_gamma"))});
}

std::unique_ptr<Layer> MakeResidual(const LayerSettings& s, const LayerRegistry& registry) {
  return std::make_unique<Residual>(
      registry.MakeLayers(s.Layers("main")), registry.MakeLayers(s.Layers("shortcut")),
      ActivationOf(s));
}

template <typename L>
std::unique_ptr<Layer> MakePlain(const LayerSettings&) {
  return std::make_unique<L>();
}

std::unique_ptr<Layer> MakeDropout(const LayerSettings& s) {
  return std::make_unique<Dropout>(s.Number("rate"));
}

std::unique_ptr<Layer> MakeDense(const LayerSettings& s) {
  return std::make_unique<Dense>(
      s.Int("units", 1, kMostUnits),
      DenseOptions{.activation = ActivationOf(s), .kernel_l2 = L2Of(s)});
}

}  // namespace

LayerRegistry LayerRegistry::BuiltIn() {
  LayerRegistry registry;
  registry.Add("average_pool2d", MakeAveragePool2D);
  registry.Add("batch_norm", MakeBatchNorm);
  registry.Add("conv2d", MakeConv2D);
  registry.Add("dense", MakeDense);
  registry.Add("dropout", MakeDropout);
  registry.Add("flatten", MakePlain<Flatten>);
  registry.Add("global_average_pool2d", MakePlain<GlobalAveragePool2D>);
  registry.Add("max_pool2d", MakeMaxPool2D);
  registry.Add("relu", MakePlain<Relu>);
  registry.Add("reshape", MakeReshape);
  registry.AddNested("residual", MakeResidual);
  registry.Add("softmax", MakePlain<Softmax>);
  return registry;
}

void LayerRegistry::Add(const std::string& kind, Make make) {
  AddNested(kind, [make = std::move(make)](const LayerSettings& settings, const LayerRegistry&) {
    return make(settings);
  });
}

void LayerRegistry::AddNested(const std::string& kind, MakeNested make) {
  const bool added = makers_.emplace(kind, std::move(make)).second;
  if (!added) RefuseArgument(Text("a layer of kind '", kind, "' exists already"));
}

std::unique_ptr<Layer> LayerRegistry::MakeLayer(const LayerConfig& config) const {
  const auto maker = makers_.find(config.kind);
  if (maker == makers_.end())
    RefuseArgument(
        Text("no layer is of kind '", config.kind.substr(0, 40), "', expected ", kinds()));
  std::unique_ptr<Layer> layer;
  try {
    layer = maker->second(config.settings, *this);
  } catch (const Error& error) {
    throw Error(error.code(), Text(config.kind, ": ", error.what()));
  }
  const LayerSettings known = layer->settings();
  for (const auto& [name, value] : config.settings.values()) {
    if (known.Has(name)) continue;
    std::string names;
    for (const auto& setting : known.values())
      names += Text(names.empty() ? "" : ", ", setting.first);
    RefuseArgument(Text(
        config.kind, ": has no setting '", name.substr(0, 40), "', expected ",
        names.empty() ? "none" : names));
  }
  return layer;
}

std::vector<std::unique_ptr<Layer>> LayerRegistry::MakeLayers(
    const std::vector<LayerConfig>& configs) const {
  std::vector<std::unique_ptr<Layer>> layers;
  for (const LayerConfig& config : configs) {
    try {
      layers.push_back(MakeLayer(config));
    } catch (const Error& error) {
      throw Error(error.code(), Text("layer ", layers.size(), ": ", error.what()));
    }
  }
  return layers;
}

std::string LayerRegistry::kinds() const {
  std::string text;
  for (const auto& maker : makers_) text += Text(text.empty() ? "" : ", ", maker.first);
  return text;
}

LayerConfig ConfigOf(const Layer& layer) { return {layer.kind(), layer.settings()}; }

std::vector<LayerConfig> ConfigsOf(const std::vector<std::unique_ptr<Layer>>& layers) {
  std::vector<LayerConfig> configs;
  for (const auto& layer : layers) configs.push_back(ConfigOf(*layer));
  return configs;
}

const char* NameOf(Initializer initializer) {
  switch (initializer) {
    case Initializer::kGlorotUniform: return "glorot_uniform";
    case Initializer::kHeNormal: return "he_normal";
  }
  return "";
}

const char* NameOf(Activation activation) {
  switch (activation) {
    case Activation::kNone: return "linear";
    case Activation::kRelu: return "relu";
  }
  return "";
}

Activation ActivationOf(const LayerSettings& settings) {
  return settings.OneOf("activation", {"linear", "relu"}) == "relu" ? Activation::kRelu
                                                                    : Activation::kNone;
}

}  // namespace dtrun::models
