#include "models/formats/onnx/onnx_layers.h"

#include <vector>

namespace dtrun::models {
namespace {

std::span<const float> TensorOf(const OnnxLayer& layer, const char* name) {
  return layer.tensors.at(name);
}

int64_t IntOf(const OnnxLayer& layer, const char* setting) {
  return layer.settings.Int(setting, 0, 1 << 30);
}

// The output of `node`, through the layer's activation if it has one.
OnnxValue Activated(const OnnxLayer& layer, OnnxValue node, OnnxGraph& graph) {
  if (layer.settings.Text("activation") == "relu")
    node.name = graph.Add("Relu", layer.name + ".relu", {node.name});
  return node;
}

// (size, size, channels, filters) -> (filters, channels, size, size)
std::vector<float> FiltersFirst(
    std::span<const float> kernel, size_t area, size_t channels, size_t filters) {
  std::vector<float> turned(kernel.size());
  for (size_t at = 0; at < area; ++at) {
    for (size_t c = 0; c < channels; ++c) {
      for (size_t f = 0; f < filters; ++f)
        turned[(f * channels + c) * area + at] = kernel[(at * channels + c) * filters + f];
    }
  }
  return turned;
}

OnnxValue ConvertConv2D(const OnnxLayer& layer, const OnnxValue& input, OnnxGraph& graph) {
  const OnnxValue image = graph.Image(input, layer.input, layer.name);
  const int64_t size = IntOf(layer, "kernel_size"), filters = layer.output.channels;
  const int64_t channels = layer.input.channels;
  const std::vector<float> kernel = FiltersFirst(
      TensorOf(layer, "kernel"), size_t(size * size), size_t(channels), size_t(filters));
  const std::vector<std::string> inputs = {
      image.name, graph.Floats(layer.name + ".kernel", {filters, channels, size, size}, kernel),
      graph.Floats(layer.name + ".bias", {filters}, TensorOf(layer, "bias"))};
  const std::string node =
      graph.Add("Conv", layer.name, inputs, {{"kernel_shape", std::vector<int64_t>{size, size}}});
  return Activated(layer, {node, layer.output}, graph);
}

OnnxValue ConvertMaxPool2D(const OnnxLayer& layer, const OnnxValue& input, OnnxGraph& graph) {
  const OnnxValue image = graph.Image(input, layer.input, layer.name);
  const std::vector<int64_t> window(2, IntOf(layer, "pool_size"));
  const std::string node = graph.Add(
      "MaxPool", layer.name, {image.name}, {{"kernel_shape", window}, {"strides", window}});
  return {node, layer.output};
}

OnnxValue ConvertDense(const OnnxLayer& layer, const OnnxValue& input, OnnxGraph& graph) {
  const OnnxValue flat = graph.Flat(input, layer.name);
  const int64_t inputs = flat.shape.channels, units = layer.output.channels;
  const std::string node = graph.Add(
      "Gemm", layer.name,
      {flat.name, graph.Floats(layer.name + ".kernel", {inputs, units}, TensorOf(layer, "kernel")),
       graph.Floats(layer.name + ".bias", {units}, TensorOf(layer, "bias"))});
  return Activated(layer, {node, layer.output, true}, graph);
}

OnnxValue ConvertDropout(const OnnxLayer&, const OnnxValue& input, OnnxGraph&) { return input; }

}  // namespace

std::map<std::string, OnnxConverter> BuiltInOnnxConverters() {
  return {
      {"conv2d", ConvertConv2D},
      {"dense", ConvertDense},
      {"dropout", ConvertDropout},
      {"max_pool2d", ConvertMaxPool2D}};
}

}  // namespace dtrun::models
