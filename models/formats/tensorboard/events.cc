#include "models/formats/tensorboard/events.h"

#include "models/formats/protobuf.h"

namespace dtrun::models {
namespace {

// Field numbers, by message.
namespace event {
enum { kWallTime = 1, kStep = 2, kFileVersion = 3, kGraphDef = 4, kSummary = 5, kSource = 10 };
}
namespace summary {
enum { kValue = 1 };
}
namespace value {
enum { kTag = 1, kSimpleValue = 2, kImage = 4, kHistogram = 5, kTensor = 8, kMetadata = 9 };
}
namespace node_def {
enum { kName = 1, kOp = 2, kInput = 3, kAttribute = 5 };
}
namespace attribute {
enum { kList = 1, kText = 2, kInt = 3, kFloat = 4, kBool = 5, kShape = 7 };
}

ProtobufWriter HeadOf(double wall_time, int64_t step) {
  ProtobufWriter message;
  message.Double(event::kWallTime, wall_time);
  message.Int(event::kStep, step);
  return message;
}

// An event with one value, which `fill` writes.
template <typename Fill>
std::string SummaryEvent(const EventHead& head, const Fill& fill) {
  ProtobufWriter one, all, message = HeadOf(head.wall_time, head.step);
  one.Bytes(value::kTag, head.tag);
  fill(one);
  all.Message(summary::kValue, one);
  message.Message(event::kSummary, all);
  return message.bytes();
}

ProtobufWriter ShapeMessage(const std::vector<int64_t>& shape) {
  ProtobufWriter message;
  for (int64_t size : shape) {
    ProtobufWriter dimension;
    dimension.Int(1, size);
    message.Message(2, dimension);
  }
  return message;
}

struct WriteAttribute {
  ProtobufWriter& to;

  void operator()(bool x) const { to.Int(attribute::kBool, x); }
  void operator()(int64_t x) const { to.Int(attribute::kInt, x); }
  void operator()(double x) const { to.Float(attribute::kFloat, static_cast<float>(x)); }
  void operator()(const std::string& x) const { to.Bytes(attribute::kText, x); }
  void operator()(const std::vector<LayerConfig>&) const {}
};

// A map is a list of pairs: key 1, value 2.
void WriteEntry(const std::string& key, const ProtobufWriter& attribute, ProtobufWriter& node) {
  ProtobufWriter entry;
  entry.Bytes(1, key);
  entry.Message(2, attribute);
  node.Message(node_def::kAttribute, entry);
}

ProtobufWriter NodeMessage(const GraphNode& node) {
  ProtobufWriter message, shapes, output_shapes;
  message.Bytes(node_def::kName, node.name);
  message.Bytes(node_def::kOp, node.op);
  for (const std::string& input : node.inputs) message.Bytes(node_def::kInput, input);
  for (const auto& [name, setting] : node.attributes.values()) {
    ProtobufWriter one;
    std::visit(WriteAttribute{one}, setting);
    if (!one.bytes().empty()) WriteEntry(name, one, message);
  }
  // What TensorBoard writes beside an edge.
  shapes.Message(attribute::kShape, ShapeMessage(node.shape));
  output_shapes.Message(attribute::kList, shapes);
  WriteEntry("_output_shapes", output_shapes, message);
  return message;
}

}  // namespace

std::string VersionEvent(double wall_time) {
  ProtobufWriter source, message;
  source.Bytes(1, "dtrun");
  message.Double(event::kWallTime, wall_time);
  message.Bytes(event::kFileVersion, "brain.Event:2");
  message.Message(event::kSource, source);
  return message.bytes();
}

std::string GraphEvent(double wall_time, const std::vector<GraphNode>& nodes) {
  ProtobufWriter graph, versions, message = HeadOf(wall_time, 0);
  for (const GraphNode& node : nodes) graph.Message(1, NodeMessage(node));
  versions.Int(1, 22);  // the oldest whose graphs look like this
  graph.Message(4, versions);
  message.Message(event::kGraphDef, graph);
  return message.bytes();
}

std::string ScalarEvent(const EventHead& head, float scalar) {
  return SummaryEvent(head, [&](ProtobufWriter& to) { to.Float(value::kSimpleValue, scalar); });
}

std::string HistogramEvent(const EventHead& head, const Histogram& h) {
  ProtobufWriter message;
  message.Double(1, h.min);
  message.Double(2, h.max);
  message.Double(3, h.count);
  message.Double(4, h.sum);
  message.Double(5, h.sum_of_squares);
  message.Doubles(6, h.upper_limits);
  message.Doubles(7, h.counts);
  return SummaryEvent(head, [&](ProtobufWriter& to) { to.Message(value::kHistogram, message); });
}

// A tensor of one string, which the plugin named in the metadata shows.
std::string TextEvent(const EventHead& head, const std::string& text) {
  constexpr int kString = 7, kTensorClass = 2;
  ProtobufWriter plugin, metadata, tensor;
  plugin.Bytes(1, "text");
  metadata.Message(1, plugin);
  metadata.Int(4, kTensorClass);
  tensor.Int(1, kString);
  tensor.Message(2, ShapeMessage({1}));
  tensor.Bytes(8, text);
  return SummaryEvent(head, [&](ProtobufWriter& to) {
    to.Message(value::kMetadata, metadata);
    to.Message(value::kTensor, tensor);
  });
}

std::string ImageEvent(
    const EventHead& head, int height, int width, int channels, const std::string& png) {
  ProtobufWriter image;
  image.Int(1, height);
  image.Int(2, width);
  image.Int(3, channels);
  image.Bytes(4, png);
  return SummaryEvent(head, [&](ProtobufWriter& to) { to.Message(value::kImage, image); });
}

}  // namespace dtrun::models
