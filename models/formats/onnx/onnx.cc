#include "models/formats/onnx/onnx.h"

#include <dtrun/error.h>

#include <algorithm>
#include <bit>
#include <span>
#include <utility>
#include <vector>

#include "models/formats/whole_file.h"
#include "models/message_text.h"

namespace dtrun::models {

// --- The graph

namespace {

static_assert(std::endian::native == std::endian::little, "ONNX's raw data is little-endian");

// The field numbers of each message (onnx/onnx.proto).
namespace model {
enum { kIrVersion = 1, kProducerName = 2, kGraph = 7, kOpsetImport = 8 };
}
namespace graph {
enum { kNode = 1, kName = 2, kInitializer = 5 };
}
namespace node {
enum { kInput = 1, kOutput = 2, kName = 3, kOp = 4, kAttribute = 5 };
}
namespace attribute {
enum { kName = 1, kFloat = 2, kInt = 3, kInts = 8, kType = 20 };
enum { kTypeFloat = 1, kTypeInt = 2, kTypeInts = 7 };
}  // namespace attribute
namespace tensor {
enum { kDims = 1, kDataType = 2, kName = 8, kRawData = 9 };
enum { kFloat = 1, kInt64 = 7 };
}  // namespace tensor

constexpr int kIrVersion = 8;

struct WriteValue {
  ProtobufWriter& to;

  void operator()(int64_t value) const {
    to.Int(attribute::kInt, value);
    to.Int(attribute::kType, attribute::kTypeInt);
  }
  void operator()(float value) const {
    to.Float(attribute::kFloat, value);
    to.Int(attribute::kType, attribute::kTypeFloat);
  }
  // proto2 does not pack repeated numbers.
  void operator()(const std::vector<int64_t>& values) const {
    for (int64_t value : values) to.Int(attribute::kInts, value);
    to.Int(attribute::kType, attribute::kTypeInts);
  }
};

ProtobufWriter Constant(
    const std::string& name, int type, const std::vector<int64_t>& shape, const void* data,
    size_t bytes) {
  ProtobufWriter message;
  for (int64_t size : shape) message.Int(tensor::kDims, size);
  message.Int(tensor::kDataType, type);
  message.Bytes(tensor::kName, name);
  message.Bytes(tensor::kRawData, {static_cast<const char*>(data), bytes});
  return message;
}

}  // namespace

OnnxValue OnnxGraph::Input(const std::string& name, const Shape& shape) {
  const OnnxValue value{name, shape, shape.pixels() == 1};
  Declare(kInput, value);
  return value;
}

void OnnxGraph::Output(const OnnxValue& value, const std::string& name) {
  Add("Identity", name, {value.name});
  Declare(kOutput, {name, value.shape, value.flat});
}

// Declares a float tensor with a first dimension named "batch".
void OnnxGraph::Declare(int field, const OnnxValue& value) {
  ProtobufWriter shape, tensor_type, type, info, batch;
  batch.Bytes(2, "batch");
  shape.Message(1, batch);
  std::vector<int> sizes = {value.shape.channels, value.shape.height, value.shape.width};
  if (value.flat) sizes = {static_cast<int>(value.shape.count())};
  for (int size : sizes) {
    ProtobufWriter dimension;
    dimension.Int(1, size);
    shape.Message(1, dimension);
  }
  tensor_type.Int(1, tensor::kFloat);
  tensor_type.Message(2, shape);
  type.Message(1, tensor_type);
  info.Bytes(1, value.name);
  info.Message(2, type);
  ends_.Message(field, info);
}

std::string OnnxGraph::Add(
    const std::string& op, const std::string& name, const std::vector<std::string>& inputs,
    const std::map<std::string, OnnxAttribute>& attributes) {
  ProtobufWriter message;
  for (const std::string& input : inputs) message.Bytes(node::kInput, input);
  message.Bytes(node::kOutput, name);
  message.Bytes(node::kName, name);
  message.Bytes(node::kOp, op);
  for (const auto& [key, value] : attributes) {
    ProtobufWriter one;
    one.Bytes(attribute::kName, key);
    std::visit(WriteValue{one}, value);
    message.Message(node::kAttribute, one);
  }
  nodes_.Message(graph::kNode, message);
  return name;
}

std::string OnnxGraph::Floats(
    const std::string& name, const std::vector<int64_t>& shape, std::span<const float> values) {
  constants_.Message(
      graph::kInitializer,
      Constant(name, tensor::kFloat, shape, values.data(), values.size_bytes()));
  return name;
}

std::string OnnxGraph::Ints(const std::string& name, std::span<const int64_t> values) {
  constants_.Message(
      graph::kInitializer, Constant(
                               name, tensor::kInt64, {static_cast<int64_t>(values.size())},
                               values.data(), values.size_bytes()));
  return name;
}

// With one channel or one pixel, both orders are the same.
OnnxValue OnnxGraph::Flat(const OnnxValue& value, const std::string& name) {
  if (value.flat) return value;
  std::string last = value.name;
  if (value.shape.channels > 1 && value.shape.pixels() > 1) {
    const std::vector<int64_t> channels_last = {0, 2, 3, 1};
    last = Add("Transpose", name + ".channels_last", {last}, {{"perm", channels_last}});
  }
  last = Add("Flatten", name + ".flat", {last}, {{"axis", int64_t{1}}});
  return {last, {1, 1, static_cast<int>(value.shape.count())}, true};
}

OnnxValue OnnxGraph::Image(const OnnxValue& value, const Shape& shape, const std::string& name) {
  if (!value.flat && value.shape == shape) return value;
  const OnnxValue flat = Flat(value, name);
  const bool turns = shape.channels > 1 && shape.pixels() > 1;
  // 0: keep the size of the input.
  std::vector<int64_t> sizes = {0, shape.channels, shape.height, shape.width};
  if (turns) sizes = {0, shape.height, shape.width, shape.channels};
  std::string last =
      Add("Reshape", name + ".reshaped", {flat.name, Ints(name + ".image_shape", sizes)});
  if (turns) {
    const std::vector<int64_t> channels_first = {0, 3, 1, 2};
    last = Add("Transpose", name + ".channels_first", {last}, {{"perm", channels_first}});
  }
  return {last, shape, false};
}

std::string OnnxGraph::ToModel(int opset) const {
  ProtobufWriter graph_message, opset_import, message;
  graph_message.Bytes(graph::kName, name_);
  const std::string content =
      nodes_.bytes() + graph_message.bytes() + constants_.bytes() + ends_.bytes();
  opset_import.Bytes(1, "");
  opset_import.Int(2, opset);
  message.Int(model::kIrVersion, kIrVersion);
  message.Bytes(model::kProducerName, "dtrun");
  message.Bytes(model::kGraph, content);
  message.Message(model::kOpsetImport, opset_import);
  return message.bytes();
}

// --- The layers

namespace {

constexpr uint64_t kMostOnnxParameters = (uint64_t(1) << 31) / sizeof(float) - 10'000'000;

std::string KindsOf(const std::map<std::string, OnnxConverter>& converters) {
  std::string kinds;
  for (const auto& converter : converters)
    kinds += Text(kinds.empty() ? "" : ", ", converter.first);
  return kinds;
}

OnnxValue Probabilities(const OnnxValue& output, OnnxGraph& graph) {
  const std::string node = graph.Add("Softmax", "softmax", {output.name}, {{"axis", int64_t{1}}});
  return {node, output.shape, output.flat};
}

// Converts layers, and the layers inside them, with the converters of their kinds.
class Exporter {
 public:
  Exporter(Sequential& model, const OnnxOptions& options, OnnxGraph& graph)
      : registry_(options.registry), converters_(options.converters), graph_(graph) {
    converters_.merge(BuiltInOnnxConverters());
    for (const NamedBuffer& weights : model.BorrowWeights())
      tensors_[weights.name] = FloatsOf(weights.buffer);
  }

  /// The names of the layers and their tensors begin with `prefix`, followed by the layer's index
  /// and kind.
  OnnxValue Convert(
      const std::vector<const Layer*>& layers, const Shape& input, const std::string& prefix,
      OnnxValue value) const {
    Shape shape = input;
    for (size_t i = 0; i < layers.size(); ++i) {
      const Layer& layer = *layers[i];
      const auto converter = converters_.find(layer.kind());
      if (converter == converters_.end()) RefuseKind(i, layer);
      const OnnxLayer told = Tell(layer, Text(prefix, i, ".", layer.kind()), shape);
      value = converter->second(told, value, graph_);
      shape = told.output;
    }
    return value;
  }

 private:
  static std::span<const float> FloatsOf(const Buffer& buffer) {
    return {static_cast<const float*>(buffer.data), buffer.count};
  }

  OnnxLayer Tell(const Layer& layer, const std::string& name, const Shape& input) const {
    OnnxLayer told{name, layer.settings(), input, layer.OutputShape(input), {}, {}};
    const std::string prefix = name + ".";
    for (auto t = tensors_.lower_bound(prefix); t != tensors_.end() && t->first.starts_with(prefix);
         ++t)
      told.tensors[t->first.substr(prefix.size())] = t->second;
    told.convert_path = [this, name, input, settings = told.settings](
                            const std::string& path, const OnnxValue& value) {
      const auto layers = registry_.MakeLayers(settings.Layers(path));
      std::vector<const Layer*> views;
      for (const auto& each : layers) views.push_back(each.get());
      return Convert(views, input, name + "." + path, value);
    };
    return told;
  }

  [[noreturn]] void RefuseKind(size_t index, const Layer& layer) const {
    RefuseArgument(Text(
        "layer ", index, " (", layer.description(),
        ") has no counterpart in ONNX, expected one of the kinds ", KindsOf(converters_)));
  }

  const LayerRegistry& registry_;
  std::map<std::string, OnnxConverter> converters_;
  OnnxGraph& graph_;
  std::map<std::string, std::span<const float>> tensors_;
};

}  // namespace

std::string ToOnnx(Sequential& model, const OnnxOptions& options) {
  if (options.opset < 13 || options.opset > 17)
    RefuseArgument(Text("ONNX operator set ", options.opset, ", expected 13 to 17"));
  if (model.parameter_count() > kMostOnnxParameters)
    RefuseArgument(
        Text(model.parameter_count(), " parameters, ONNX's format holds ", kMostOnnxParameters));
  OnnxGraph graph("dtrun");
  const OnnxValue input = graph.Input("input", model.input_shape());
  const Exporter exporter(model, options, graph);
  OnnxValue value = exporter.Convert(model.layers(), model.input_shape(), "layer", input);
  value = graph.Flat(value, "output");
  const bool ends_with_softmax =
      !model.layers().empty() && model.layers().back()->kind() == "softmax";
  if (options.probabilities && !ends_with_softmax) value = Probabilities(value, graph);
  graph.Output(value, options.probabilities ? "probabilities" : "output");
  return graph.ToModel(options.opset);
}

void ExportOnnx(Sequential& model, const std::string& path, const OnnxOptions& options) {
  ReplaceFile(path, ToOnnx(model, options));
}

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

// Returns "valid", "same" or a number of pixels. Layers save the number as a number or as a text.
std::string PaddingOf(const OnnxLayer& layer) {
  const auto padding = layer.settings.values().find("padding");
  if (padding == layer.settings.values().end()) return "valid";
  const auto* pixels = std::get_if<int64_t>(&padding->second);
  return pixels != nullptr ? std::to_string(*pixels) : layer.settings.Text("padding");
}

// The padding before and after one side. Keras's rule for "same": an odd pixel comes after.
std::pair<int64_t, int64_t> PixelsOf(
    const std::string& padding, int64_t size, int64_t stride, int input, int output) {
  if (padding == "valid") return {0, 0};
  if (padding != "same") return {std::stoll(padding), std::stoll(padding)};
  const int64_t total = std::max<int64_t>(0, (output - 1) * stride + size - input);
  return {total / 2, total - total / 2};
}

// The window attributes of a convolution or pooling.
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

// The output of `node`, after the layer's activation if it has one.
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

// The padding does not count in the mean. ONNX's AveragePool has the same default.
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

// Over the channels: the second dimension of images and of flat values.
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
