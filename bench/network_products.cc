#include <dtrun/error.h>

#include <cstdint>
#include <variant>

#include "bench/onednn_floor.h"
#include "models/layers/registry.h"
#include "models/layers/window.h"

namespace dtrun::bench {
namespace {

using models::LayerList;
using models::Shape;

// The window of a convolution. The padding is a number of pixels, "same" or "valid".
models::Window WindowOf(const models::LayerSettings& settings) {
  constexpr int kMost = 1 << 16;
  models::Window window = {
      settings.Int("kernel_size", 1, kMost), settings.Int("strides", 1, kMost)};
  if (std::holds_alternative<int64_t>(settings.values().at("padding")))
    window.padding = models::Padding::Pixels(settings.Int("padding", 0, kMost));
  else if (settings.Text("padding") == "same")
    window.padding = models::Padding::Same();
  return window;
}

// Finds the products of layers, including layers inside residual blocks.
class ProductFinder {
 public:
  explicit ProductFinder(std::vector<LayerProduct>& products) : products_(products) {}

  // `input_gradient` says whether the layers' input has a gradient. Returns whether their output
  // has a gradient.
  bool Walk(const LayerList& layers, Shape shape, bool input_gradient) {
    for (const auto& layer : layers) {
      input_gradient = Visit(*layer, shape, input_gradient);
      shape = layer->OutputShape(shape);
    }
    return input_gradient;
  }

 private:
  bool Visit(const models::Layer& layer, const Shape& input, bool input_gradient) {
    const models::LayerSettings settings = layer.settings();
    if (layer.kind() == "residual") {
      for (const char* path : {"main", "shortcut"})
        if (settings.Has(path))
          Walk(registry_.MakeLayers(settings.Layers(path)), input, input_gradient);
      return true;
    }
    const auto specs = layer.ParameterSpecs(input);
    if (specs.empty()) return input_gradient;
    if (layer.kind() == "batch_norm") return true;
    ProductShape shape = {input, layer.OutputShape(input), 0, 1, {}, specs.size() > 1};
    if (layer.kind() == "conv2d") {
      const models::Window window = WindowOf(settings);
      const auto rows = models::ExtentOf(window, input.height);
      const auto columns = models::ExtentOf(window, input.width);
      shape.size = window.size;
      shape.stride = window.stride;
      shape.padding = {rows.before, rows.after, columns.before, columns.after};
    } else if (layer.kind() != "dense") {
      throw Error(
          ErrorCode::kInvalidArgument,
          layer.description() +
              ": its products are not known; expected a convolution or a dense "
              "layer");
    }
    products_.push_back({layer.description(), shape, input_gradient});
    return true;
  }

  const models::LayerRegistry registry_ = models::LayerRegistry::BuiltIn();
  std::vector<LayerProduct>& products_;
};

}  // namespace

ProductShape::Key ProductShape::key() const {
  return {input.height, input.width, input.channels, output.height, output.width, output.channels,
          size,         stride,      padding[0],     padding[1],    padding[2],   padding[3],
          bias};
}

double ProductShape::mflop() const {
  const double inputs = convolves() ? 1.0 * size * size * input.channels : 1.0 * input.count();
  return 2e-6 * inputs * static_cast<double>(output.count());
}

std::vector<LayerProduct> ProductsOf(const models::Network& network) {
  std::vector<LayerProduct> products;
  ProductFinder(products).Walk(network.layers, network.input, /*input_gradient=*/false);
  return products;
}

}  // namespace dtrun::bench
