#include "models/formats/tensorboard/summary_writer.h"

#include <dtrun/error.h>
#include <zlib.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <utility>

#include "models/formats/tensorboard/events.h"
#include "models/message_text.h"

namespace dtrun::models {

/// Encodes `pixels` (height, width, channels), 8 bits each, as a PNG file (W3C, "Portable Network
/// Graphics Specification"). `channels` is 1 (grey) or 3 (red, green, blue). Throws Error
/// kInvalidArgument for sides below 1 or above 32768, other numbers of channels, and a number of
/// pixels that is not the product.
std::string ToPng(int height, int width, int channels, std::span<const uint8_t> pixels);

namespace {

using Clock = std::chrono::steady_clock;

// Above kUrgentBytes the thread writes at once. At kMostBytes the callers of Add wait.
constexpr size_t kUrgentBytes = size_t(1) << 20, kMostBytes = size_t(64) << 20;

}  // namespace

// Events wait as functions that serialise them. The thread serialises and writes the events. It
// sleeps until the oldest event has waited for flush_seconds, kUrgentBytes are pending, or Flush is
// called.
class SummaryWriter::Impl {
 public:
  using Serialise = std::function<std::string()>;

  Impl(const std::string& folder, const SummaryWriterOptions& options)
      : file_(folder),
        delay_(std::chrono::duration_cast<Clock::duration>(
            std::chrono::duration<double>(options.flush_seconds))),
        thread_([this] { Run(); }) {}

  ~Impl() {
    {
      const std::scoped_lock lock(mutex_);
      stopping_ = true;
    }
    wake_.notify_one();
    thread_.join();
  }

  void Add(size_t bytes, Serialise event) {
    std::unique_lock lock(mutex_);
    written_.wait(lock, [this] { return bytes_ < kMostBytes; });
    if (waiting_.empty()) due_ = Clock::now() + delay_;
    waiting_.push_back(std::move(event));
    bytes_ += bytes;
    ++added_;
    if (waiting_.size() == 1 || bytes_ > kUrgentBytes) wake_.notify_one();
  }

  void Flush() {
    std::unique_lock lock(mutex_);
    const uint64_t wanted = added_;
    due_ = Clock::now();
    wake_.notify_one();
    written_.wait(lock, [&] { return in_file_ >= wanted; });
    if (!problem_.empty()) throw Error(ErrorCode::kSystem, problem_);
  }

  const std::string& path() const { return file_.path(); }

 private:
  bool IsDue() const { return stopping_ || bytes_ > kUrgentBytes || Clock::now() >= due_; }

  void Run() {
    std::unique_lock lock(mutex_);
    while (true) {
      wake_.wait(lock, [this] { return stopping_ || !waiting_.empty(); });
      while (!IsDue()) wake_.wait_until(lock, due_);
      if (waiting_.empty()) return;
      const std::vector<Serialise> events = std::exchange(waiting_, {});
      bytes_ = 0;
      lock.unlock();
      Write(events);
      lock.lock();
      in_file_ += events.size();
      problem_ = file_.problem();
      written_.notify_all();
    }
  }

  void Write(const std::vector<Serialise>& events) {
    if (!file_.problem().empty()) return;
    std::string records;
    for (const Serialise& event : events) records += ToRecord(event());
    file_.Append(records);
  }

  EventFile file_;
  const Clock::duration delay_;

  std::mutex mutex_;
  std::condition_variable wake_, written_;
  std::vector<Serialise> waiting_;
  size_t bytes_ = 0;  // of the waiting events
  Clock::time_point due_;
  uint64_t added_ = 0, in_file_ = 0;  // counts of events
  std::string problem_;
  bool stopping_ = false;
  std::thread thread_;
};

SummaryWriter::SummaryWriter(const std::string& folder, const SummaryWriterOptions& options)
    : impl_(std::make_unique<Impl>(folder, options)) {}
SummaryWriter::~SummaryWriter() = default;

void SummaryWriter::Scalar(const std::string& tag, double value, int64_t step) {
  impl_->Add(64 + tag.size(), [head = EventHead{SecondsSince1970(), step, tag}, value] {
    return ScalarEvent(head, static_cast<float>(value));
  });
}

void SummaryWriter::Histogram(const std::string& tag, std::span<const float> values, int64_t step) {
  impl_->Add(
      values.size_bytes(), [head = EventHead{SecondsSince1970(), step, tag},
                            copy = std::vector<float>(values.begin(), values.end())] {
        return HistogramEvent(head, HistogramOf(copy));
      });
}

void SummaryWriter::Text(const std::string& tag, const std::string& text, int64_t step) {
  impl_->Add(text.size(), [head = EventHead{SecondsSince1970(), step, tag}, text] {
    return TextEvent(head, text);
  });
}

void SummaryWriter::Image(
    const std::string& tag, int height, int width, int channels, std::span<const uint8_t> pixels,
    int64_t step) {
  const std::string png = ToPng(height, width, channels, pixels);
  impl_->Add(
      png.size(), [head = EventHead{SecondsSince1970(), step, tag}, height, width, channels, png] {
        return ImageEvent(head, height, width, channels, png);
      });
}

void SummaryWriter::BeginSession(HParams hparams, std::vector<std::string> metrics) {
  const double now = SecondsSince1970();
  impl_->Add(100 * (hparams.size() + metrics.size()), [now, hparams, metrics = std::move(metrics)] {
    return HParamsExperimentEvent(now, hparams, metrics);
  });
  impl_->Add(100 * hparams.size(), [now, hparams = std::move(hparams)] {
    return HParamsStartEvent(now, hparams);
  });
}

void SummaryWriter::EndSession(SessionStatus status) {
  impl_->Add(100, [now = SecondsSince1970(), status] { return HParamsEndEvent(now, status); });
}

void SummaryWriter::Graph(std::vector<GraphNode> nodes) {
  impl_->Add(100 * nodes.size(), [now = SecondsSince1970(), nodes = std::move(nodes)] {
    return GraphEvent(now, nodes);
  });
}

void SummaryWriter::Flush() { impl_->Flush(); }
const std::string& SummaryWriter::path() const { return impl_->path(); }

namespace {

std::string BigEndian(size_t value) {
  std::string bytes;
  for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>(value >> shift);
  return bytes;
}

// A chunk: the length, the name, the data, and the checksum of name and data.
std::string Chunk(const std::string& name, const std::string& data) {
  const std::string sealed = name + data;
  const auto* bytes = reinterpret_cast<const Bytef*>(sealed.data());
  return BigEndian(data.size()) + sealed + BigEndian(crc32(0, bytes, uInt(sealed.size())));
}

std::string Deflated(const std::string& data) {
  uLongf size = compressBound(data.size());
  std::string packed(size, '\0');
  const int status = compress(
      reinterpret_cast<Bytef*>(packed.data()), &size, reinterpret_cast<const Bytef*>(data.data()),
      data.size());
  if (status != Z_OK)
    throw Error(ErrorCode::kSystem, Text("zlib could not compress an image: status ", status));
  packed.resize(size);
  return packed;
}

void Check(int height, int width, int channels, size_t pixels) {
  constexpr int kMost = 1 << 15;
  if (height < 1 || height > kMost || width < 1 || width > kMost ||
      (channels != 1 && channels != 3))
    throw Error(
        ErrorCode::kInvalidArgument,
        Text(
            "an image of ", height, "x", width, "x", channels, ", expected sides from 1 to ", kMost,
            " and 1 or 3 channels"));
  const size_t expected = size_t(height) * size_t(width) * size_t(channels);
  if (pixels != expected)
    throw Error(
        ErrorCode::kInvalidArgument, Text(
                                         "an image of ", height, "x", width, "x", channels,
                                         " with ", pixels, " values, expected ", expected));
}

}  // namespace

// A PNG file: signature, header, pixels, end. Each row begins with the number of its filter, 0 for
// no filter.
std::string ToPng(int height, int width, int channels, std::span<const uint8_t> pixels) {
  Check(height, width, channels, pixels.size());
  constexpr char kGrey = 0, kRgb = 2;
  std::string header = BigEndian(size_t(width)) + BigEndian(size_t(height));
  header += {8, channels == 1 ? kGrey : kRgb, 0, 0, 0};
  const size_t row = size_t(width) * size_t(channels);
  std::string rows;
  for (size_t begin = 0; begin < pixels.size(); begin += row) {
    rows += '\0';
    rows.append(reinterpret_cast<const char*>(pixels.data() + begin), row);
  }
  return "\x89PNG\r\n\x1a\n" + Chunk("IHDR", header) + Chunk("IDAT", Deflated(rows)) +
         Chunk("IEND", "");
}

namespace {

constexpr int64_t kAnyBatch = -1;

std::vector<int64_t> ShapeOf(const Shape& shape) {
  if (shape.pixels() == 1) return {kAnyBatch, shape.channels};
  return {kAnyBatch, shape.height, shape.width, shape.channels};
}

bool HasRelu(const LayerSettings& settings) {
  return settings.Has("activation") && settings.Text("activation") == "relu";
}

// Appends the nodes of a layer that reads `input`. Returns the name of its output node.
std::string AppendLayer(
    const Layer& layer, const std::string& box, const std::string& input, const Shape& shape,
    std::vector<GraphNode>& nodes) {
  GraphNode node{Text(box, "/", layer.kind()), layer.kind(), {input}, {}, layer.settings()};
  for (const ParameterSpec& spec : layer.ParameterSpecs(shape)) {
    const std::string name = Text(box, "/", spec.name);
    nodes.push_back({name, "Variable", {}, {spec.shape.begin(), spec.shape.end()}, {}});
    node.inputs.push_back(name);
  }
  node.shape = ShapeOf(layer.OutputShape(shape));
  nodes.push_back(node);
  if (!HasRelu(node.attributes)) return node.name;
  nodes.push_back({Text(box, "/relu"), "Relu", {node.name}, node.shape, {}});
  return nodes.back().name;
}

}  // namespace

std::vector<GraphNode> GraphOf(const Shape& input, const std::vector<const Layer*>& layers) {
  std::vector<GraphNode> nodes = {{"input", "Placeholder", {}, ShapeOf(input), {}}};
  std::string last = "input";
  Shape shape = input;
  for (size_t i = 0; i < layers.size(); ++i) {
    const std::string box = Text("layer", i, "_", layers[i]->kind());
    last = AppendLayer(*layers[i], box, last, shape, nodes);
    shape = layers[i]->OutputShape(shape);
  }
  return nodes;
}

void WriteHistograms(
    const std::vector<Parameter>& parameters, int64_t step, SummaryWriter& writer) {
  for (const Parameter& parameter : parameters) {
    const Buffer& value = parameter.value;
    if (value.dtype != DType::kF32) {
      throw Error(
          ErrorCode::kInvalidArgument,
          Text(parameter.name, ": values of ", NameOf(value.dtype), ", expected f32"));
    }
    writer.Histogram(
        parameter.name + "/histogram", {static_cast<const float*>(value.data), value.count}, step);
  }
}

}  // namespace dtrun::models
