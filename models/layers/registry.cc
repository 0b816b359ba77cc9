#include "models/layers/registry.h"

#include <dtrun/error.h>

#include "models/layers/conv2d.h"
#include "models/layers/dense.h"
#include "models/layers/dropout.h"
#include "models/layers/max_pool2d.h"
#include "models/text.h"

namespace dtrun::models {
namespace {

// What a file may ask for: far more than anybody computes with, and little enough that products of
// two of them stay far from overflow.
constexpr int kMostChannels = 1 << 16;
constexpr int kMostUnits = 1 << 20;
constexpr int kMostPixels = 1 << 7;  // of a window's side

[[noreturn]] void Refuse(const std::string& text) {
  throw Error(ErrorCode::kInvalidArgument, text);
}

std::unique_ptr<Layer> MakeConv2D(const LayerSettings& s) {
  const int filters = s.Int("filters", 1, kMostChannels);
  const int size = s.Int("kernel_size", 1, kMostPixels);
  const Window window = WindowOf(size, s);
  return std::make_unique<Conv2D>(
      filters, size,
      Conv2DOptions{
          .stride = window.stride,
          .padding = window.padding,
          .activation = ActivationOf(s),
          .use_bias = s.Flag("use_bias")});
}

std::unique_ptr<Layer> MakeMaxPool2D(const LayerSettings& s) {
  return std::make_unique<MaxPool2D>(s.Int("pool_size", 1, 15));
}

std::unique_ptr<Layer> MakeDropout(const LayerSettings& s) {
  return std::make_unique<Dropout>(s.Number("rate"));
}

std::unique_ptr<Layer> MakeDense(const LayerSettings& s) {
  return std::make_unique<Dense>(s.Int("units", 1, kMostUnits), ActivationOf(s));
}

}  // namespace

LayerRegistry LayerRegistry::BuiltIn() {
  LayerRegistry registry;
  registry.Add("conv2d", MakeConv2D);
  registry.Add("dense", MakeDense);
  registry.Add("dropout", MakeDropout);
  registry.Add("max_pool2d", MakeMaxPool2D);
  return registry;
}

void LayerRegistry::Add(const std::string& kind, Make make) {
  AddNested(kind, [make = std::move(make)](const LayerSettings& settings, const LayerRegistry&) {
    return make(settings);
  });
}

void LayerRegistry::AddNested(const std::string& kind, MakeNested make) {
  const bool added = makers_.emplace(kind, std::move(make)).second;
  if (!added) Refuse(Text("there is a layer of kind '", kind, "' already"));
}

std::unique_ptr<Layer> LayerRegistry::MakeLayer(const LayerConfig& config) const {
  const auto maker = makers_.find(config.kind);
  if (maker == makers_.end())
    Refuse(Text("no layer is of kind '", config.kind.substr(0, 40), "', expected ", kinds()));
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
    Refuse(Text(
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

void SetStrides(const Window& window, LayerSettings* settings) {
  settings->Set("strides", window.stride);
  const Padding padding = window.padding;
  if (padding.is_same() || padding.is_valid()) {
    settings->Set("padding", padding.is_same() ? "same" : "valid");
  } else {
    settings->Set("padding", padding.pixels());
  }
}

Window WindowOf(int size, const LayerSettings& settings) {
  Window window{size, settings.Int("strides", 1, kMostPixels), Padding::Valid()};
  const auto padding = settings.values().find("padding");
  if (padding != settings.values().end() && std::holds_alternative<int64_t>(padding->second)) {
    window.padding = Padding::Pixels(settings.Int("padding", 0, kMostPixels));
  } else if (settings.OneOf("padding", {"valid", "same"}) == "same") {
    window.padding = Padding::Same();
  }
  return window;
}

}  // namespace dtrun::models
