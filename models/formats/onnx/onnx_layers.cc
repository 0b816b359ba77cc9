#include "models/formats/onnx/onnx_layers.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace dtrun::models {
namespace {

std::span<const float> TensorOf(const OnnxLayer& layer, const char* name) {
  return layer.tensors.at(name);
}

int64_t IntOf(const OnnxLayer& layer, const char* setting) {
  return layer.settings.Int(setting, 0, 1 << 30);
}

std::string TextOf(const OnnxLayer& layer, const char* setting, const char* otherwise) {
  return layer.settings.Has(setting) ? layer.settings.Text(setting) : otherwise;
}

// "valid", "same" or a number of pixels, which layers write down as a number or as a text.
std::string PaddingOf(const OnnxLayer& layer) {
  const auto padding = layer.settings.values().find("padding");
  if (padding == layer.settings.values().end()) return "valid";
  const auto* pixels = std::get_if<int64_t>(&padding->second);
  return pixels != nullptr ? std::to_string(*pixels) : layer.settings.Text("padding");
}

// Before and after one side, by Keras's rule for "same": an odd pixel comes after.
std::pair<int64_t, int64_t> PixelsOf(
    const std::string& padding, int64_t size, int64_t stride, int input, int output) {
  if (padding == "valid") return {0, 0};
  if (padding != "same") return {std::stoll(padding), std::stoll(padding)};
  const int64_t total = std::max<int64_t>(0, (output - 1) * stride + size - input);
  return {total / 2, total - total / 2};
}

// Of the windows of a convolution or pooling.
std::map<std::string, OnnxAttribute> WindowOf(
    const OnnxLayer& layer, const char* size_setting, int64_t usual_stride) {
  const int64_t size = IntOf(layer, size_setting);
  const int64_t stride = layer.settings.Has("strides") ? IntOf(layer, "strides") : usual_stride;
  const std::string padding = PaddingOf(layer);
  const auto rows = PixelsOf(padding, size, stride, layer.input.height, layer.output.height);
  const auto columns = PixelsOf(padding, size, stride, layer.input.width, layer.output.width);
  return {
      {"kernel_shape", std::vector<int64_t>{size, size}},
      {"strides", std::vector<int64_t>{stride, stride}},
      {"pads", std::vector<int64_t>{rows.first, columns.first, rows.second, columns.second}}};
}

// The output of `node`, through the layer's activation if it has one.
OnnxValue Activated(const OnnxLayer& layer, OnnxValue node, OnnxGraph& graph) {
  if (TextOf(layer, "activation", "linear") == "relu")
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
  std::vector<std::string> inputs = {
      image.name, graph.Floats(layer.name + ".kernel", {filters, channels, size, size}, kernel)};
  if (layer.tensors.contains("bias"))
    inputs.push_back(graph.Floats(layer.name + ".bias", {filters}, TensorOf(layer, "bias")));
  const std::string node = graph.Add("Conv", layer.name, inputs, WindowOf(layer, "kernel_size", 1));
  return Activated(layer, {node, layer.output}, graph);
}

OnnxValue ConvertPool2D(
    const char* op, const OnnxLayer& layer, const OnnxValue& input, OnnxGraph& graph) {
  const OnnxValue image = graph.Image(input, layer.input, layer.name);
  const auto window = WindowOf(layer, "pool_size", IntOf(layer, "pool_size"));
  return {graph.Add(op, layer.name, {image.name}, window), layer.output};
}

OnnxValue ConvertMaxPool2D(const OnnxLayer& layer, const OnnxValue& input, OnnxGraph& graph) {
  return ConvertPool2D("MaxPool", layer, input, graph);
}

// Padding takes no part in the mean, as is AveragePool's rule, too.
OnnxValue ConvertAveragePool2D(const OnnxLayer& layer, const OnnxValue& input, OnnxGraph& graph) {
  return ConvertPool2D("AveragePool", layer, input, graph);
}

OnnxValue ConvertGlobalAverage(const OnnxLayer& layer, const OnnxValue& input, OnnxGraph& graph) {
  const OnnxValue image = graph.Image(input, layer.input, layer.name);
  return {graph.Add("GlobalAveragePool", layer.name, {image.name}), layer.output};
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

OnnxValue ConvertBatchNorm(const OnnxLayer& layer, const OnnxValue& input, OnnxGraph& graph) {
  std::vector<std::string> inputs = {input.name};
  for (const char* name : {"gamma", "beta", "moving_mean", "moving_variance"}) {
    inputs.push_back(
        graph.Floats(layer.name + "." + name, {layer.input.channels}, TensorOf(layer, name)));
  }
  const auto epsilon = static_cast<float>(layer.settings.Number("epsilon"));
  const std::string node =
      graph.Add("BatchNormalization", layer.name, inputs, {{"epsilon", epsilon}});
  return Activated(layer, {node, input.shape, input.flat}, graph);
}

OnnxValue ConvertRelu(const OnnxLayer& layer, const OnnxValue& input, OnnxGraph& graph) {
  return {graph.Add("Relu", layer.name, {input.name}), input.shape, input.flat};
}

// Over the channels, which are the second dimension of images and of what is flat.
OnnxValue ConvertSoftmax(const OnnxLayer& layer, const OnnxValue& input, OnnxGraph& graph) {
  const std::string node = graph.Add("Softmax", layer.name, {input.name}, {{"axis", int64_t{1}}});
  return {node, input.shape, input.flat};
}

OnnxValue ConvertReshape(const OnnxLayer& layer, const OnnxValue& input, OnnxGraph& graph) {
  if (layer.output.pixels() == 1) return graph.Flat(input, layer.name);
  return graph.Image(input, layer.output, layer.name);
}

OnnxValue ConvertResidual(const OnnxLayer& layer, const OnnxValue& input, OnnxGraph& graph) {
  OnnxValue main = layer.convert_path("main", input);
  OnnxValue shortcut = layer.convert_path("shortcut", input);
  if (main.flat != shortcut.flat) {
    main = graph.Flat(main, layer.name + ".main");
    shortcut = graph.Flat(shortcut, layer.name + ".shortcut");
  }
  const std::string node = graph.Add("Add", layer.name, {main.name, shortcut.name});
  return Activated(layer, {node, main.shape, main.flat}, graph);
}

OnnxValue ConvertDropout(const OnnxLayer&, const OnnxValue& input, OnnxGraph&) { return input; }

}  // namespace

std::map<std::string, OnnxConverter> BuiltInOnnxConverters() {
  return {
      {"average_pool2d", ConvertAveragePool2D},
      {"batch_norm", ConvertBatchNorm},
      {"conv2d", ConvertConv2D},
      {"dense", ConvertDense},
      {"dropout", ConvertDropout},
      {"flatten", ConvertReshape},
      {"global_average_pool2d", ConvertGlobalAverage},
      {"max_pool2d", ConvertMaxPool2D},
      {"relu", ConvertRelu},
      {"reshape", ConvertReshape},
      {"residual", ConvertResidual},
      {"softmax", ConvertSoftmax}};
}

}  // namespace dtrun::models
