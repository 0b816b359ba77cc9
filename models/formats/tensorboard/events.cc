#include "models/formats/tensorboard/events.h"

#include <dtrun/error.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <system_error>

#include "models/formats/protobuf.h"
#include "models/message_text.h"

namespace dtrun::models {
namespace {

// The field numbers of each message.
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
namespace attr_value {
enum { kList = 1, kText = 2, kInt = 3, kFloat = 4, kBool = 5, kShape = 7 };
}

ProtobufWriter HeadOf(double wall_time, int64_t step) {
  ProtobufWriter message;
  message.Double(event::kWallTime, wall_time);
  message.Int(event::kStep, step);
  return message;
}

// An event with one value. `fill` writes the value.
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

  void operator()(bool x) const { to.Int(attr_value::kBool, x); }
  void operator()(int64_t x) const { to.Int(attr_value::kInt, x); }
  void operator()(double x) const { to.Float(attr_value::kFloat, static_cast<float>(x)); }
  void operator()(const std::string& x) const { to.Bytes(attr_value::kText, x); }
  void operator()(const std::vector<LayerConfig>&) const {}
};

// A protobuf map is a list of entries: key is field 1, value is field 2.
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
  // TensorBoard writes these shapes beside the edges.
  shapes.Message(attr_value::kShape, ShapeMessage(node.shape));
  output_shapes.Message(attr_value::kList, shapes);
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
  versions.Int(1, 22);  // the oldest version with graphs of this form
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

// The text is a tensor of one string. TensorBoard shows it with the plugin that the metadata names.
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

namespace {

namespace plugin_data {
enum { kVersion = 1, kExperiment = 2, kSessionStart = 3, kSessionEnd = 4 };
}

// google.protobuf.Value
struct WriteHParam {
  ProtobufWriter& to;

  void operator()(double x) const { to.Double(2, x); }
  void operator()(const std::string& x) const { to.Bytes(3, x); }
  void operator()(bool x) const { to.Int(4, x); }
};

// tensorboard.hparams.DataType
struct HParamType {
  int64_t operator()(const std::string&) const { return 1; }
  int64_t operator()(bool) const { return 2; }
  int64_t operator()(double) const { return 3; }
};

// The message is in the metadata. The tensor is an empty list of floats.
std::string HParamsEvent(
    double wall_time, const char* name, int field, const ProtobufWriter& message) {
  constexpr int kFloat = 1;
  ProtobufWriter data, plugin, metadata, tensor;
  data.Int(plugin_data::kVersion, 0);
  data.Message(field, message);
  plugin.Bytes(1, "hparams");
  plugin.Message(2, data);
  metadata.Message(1, plugin);
  tensor.Int(1, kFloat);
  tensor.Message(2, ShapeMessage({0}));
  const EventHead head = {wall_time, 0, Text("_hparams_/", name)};
  return SummaryEvent(head, [&](ProtobufWriter& to) {
    to.Message(value::kMetadata, metadata);
    to.Message(value::kTensor, tensor);
  });
}

}  // namespace

std::string HParamsExperimentEvent(
    double wall_time, const HParams& hparams, const std::vector<std::string>& metrics) {
  enum { kTimeCreated = 3, kHParamInfo = 4, kMetricInfo = 5 };
  ProtobufWriter experiment;
  experiment.Double(kTimeCreated, wall_time);
  for (const auto& [name, value] : hparams) {
    ProtobufWriter info;
    info.Bytes(1, name);
    info.Int(4, std::visit(HParamType(), value));
    experiment.Message(kHParamInfo, info);
  }
  for (const std::string& tag : metrics) {
    ProtobufWriter name, info;
    name.Bytes(2, tag);
    info.Message(1, name);
    experiment.Message(kMetricInfo, info);
  }
  return HParamsEvent(wall_time, "experiment", plugin_data::kExperiment, experiment);
}

std::string HParamsStartEvent(double wall_time, const HParams& hparams) {
  enum { kHParams = 1, kStartTime = 5 };
  ProtobufWriter start;
  for (const auto& [name, value] : hparams) {
    ProtobufWriter one, entry;
    std::visit(WriteHParam{one}, value);
    entry.Bytes(1, name);
    entry.Message(2, one);
    start.Message(kHParams, entry);
  }
  start.Double(kStartTime, wall_time);
  return HParamsEvent(wall_time, "session_start_info", plugin_data::kSessionStart, start);
}

std::string HParamsEndEvent(double wall_time, SessionStatus status) {
  ProtobufWriter end;
  end.Int(1, static_cast<int64_t>(status));
  end.Double(2, wall_time);
  return HParamsEvent(wall_time, "session_end_info", plugin_data::kSessionEnd, end);
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

namespace {

constexpr size_t kBuckets = 30;

void Measure(std::span<const float> values, Histogram& histogram) {
  for (float value : values) {
    if (!std::isfinite(value)) continue;
    const double x = value;
    histogram.min = histogram.count == 0 ? x : std::min(histogram.min, x);
    histogram.max = histogram.count == 0 ? x : std::max(histogram.max, x);
    ++histogram.count;
    histogram.sum += x;
    histogram.sum_of_squares += x * x;
  }
}

}  // namespace

Histogram HistogramOf(std::span<const float> values) {
  Histogram histogram;
  Measure(values, histogram);
  if (histogram.count == 0) return histogram;
  const double range = histogram.max - histogram.min;
  if (range == 0) {
    histogram.upper_limits = {histogram.max};
    histogram.counts = {histogram.count};
    return histogram;
  }
  for (size_t i = 1; i < kBuckets; ++i)
    histogram.upper_limits.push_back(histogram.min + range * double(i) / double(kBuckets));
  histogram.upper_limits.push_back(histogram.max);
  histogram.counts.resize(kBuckets);
  for (float value : values) {
    if (!std::isfinite(value)) continue;
    const double position = (double(value) - histogram.min) / range * double(kBuckets);
    ++histogram.counts[std::min(static_cast<size_t>(position), kBuckets - 1)];
  }
  return histogram;
}

namespace {

// The CRC of each byte: eight steps of the division by the polynomial, with reversed bits.
constexpr std::array<uint32_t, 256> MakeTable() {
  constexpr uint32_t kPolynomial = 0x82f63b78;
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t rest = byte;
    for (int bit = 0; bit < 8; ++bit) rest = rest >> 1 ^ (rest & 1 ? kPolynomial : 0);
    table[byte] = rest;
  }
  return table;
}
constexpr std::array<uint32_t, 256> kTable = MakeTable();

std::string LittleEndian(uint64_t value, int bytes) {
  std::string text;
  for (int i = 0; i < bytes; ++i) text += static_cast<char>(value >> (8 * i));
  return text;
}

std::string MaskedCrc(std::string_view bytes) {
  return LittleEndian(std::rotr(Crc32c(bytes), 15) + 0xa282ead8, 4);
}

}  // namespace

uint32_t Crc32c(std::string_view bytes) {
  uint32_t rest = ~uint32_t{0};
  for (char byte : bytes) rest = rest >> 8 ^ kTable[(rest ^ static_cast<uint8_t>(byte)) & 0xff];
  return ~rest;
}

std::string ToRecord(std::string_view data) {
  const std::string length = LittleEndian(data.size(), 8);
  std::string record = length + MaskedCrc(length);
  record += data;
  return record + MaskedCrc(data);
}

double SecondsSince1970() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

namespace {

std::string Because(const std::string& path, const std::string& what, int error) {
  return Text(path, ": ", what, ": ", std::generic_category().message(error));
}

std::string HostName() {
  char name[256] = {};
  if (gethostname(name, sizeof name - 1) != 0) return "localhost";
  return name;
}

// TensorBoard reads the files of a folder in the order of their names.
std::string NewName(double now) {
  static std::atomic<int> made = 0;
  char seconds[24];
  std::snprintf(seconds, sizeof seconds, "%010lld", static_cast<long long>(now));
  return Text("events.out.tfevents.", seconds, ".", HostName(), ".", getpid(), ".", made++);
}

}  // namespace

EventFile::EventFile(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) throw Error(ErrorCode::kSystem, Because(folder, "cannot be made", error.value()));
  const double now = SecondsSince1970();
  path_ = std::filesystem::path(folder) / NewName(now);
  file_ = open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (file_ < 0) throw Error(ErrorCode::kSystem, Because(path_, "cannot be made", errno));
  Append(ToRecord(VersionEvent(now)));
  if (problem_.empty()) return;
  close(file_);
  unlink(path_.c_str());
  throw Error(ErrorCode::kSystem, problem_);
}

EventFile::~EventFile() { close(file_); }

void EventFile::Append(const std::string& records) {
  if (!problem_.empty()) return;
  for (size_t done = 0; done < records.size();) {
    const ssize_t wrote = write(file_, records.data() + done, records.size() - done);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) {
      problem_ = Because(path_, "cannot be written", errno);
      // If this fails too, readers stop before the incomplete record.
      [[maybe_unused]] const int cut = ftruncate(file_, size_);
      return;
    }
    done += static_cast<size_t>(wrote);
  }
  size_ += static_cast<int64_t>(records.size());
}

}  // namespace dtrun::models
