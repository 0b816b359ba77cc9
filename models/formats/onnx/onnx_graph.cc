#include <bit>

#include "models/formats/onnx/onnx.h"

namespace dtrun::models {
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

}  // namespace dtrun::models
