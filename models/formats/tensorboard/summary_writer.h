#ifndef DTRUN_MODELS_FORMATS_TENSORBOARD_SUMMARY_WRITER_H_
#define DTRUN_MODELS_FORMATS_TENSORBOARD_SUMMARY_WRITER_H_

#include <dtrun/optimizer.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "models/formats/tensorboard/events.h"
#include "models/layers/layer.h"

namespace dtrun::models {

struct SummaryWriterOptions {
  /// The longest time until an event is in the file.
  double flush_seconds = 10;
};

/// Writes an event file that TensorBoard shows:
///
///   SummaryWriter train("logs/train"), validation("logs/validation");
///   train.Scalar("epoch_loss", 0.41, epoch);
///
///   tensorboard --logdir logs
///
/// The file is `folder`/events.out.tfevents.<seconds>.<host>.<pid>.<number>. The folder is created
/// if necessary. Every writer makes a new file, and TensorBoard shows all files of a folder as one
/// run. In a job, one rank writes.
///
/// The functions copy their arguments and return. A thread of the writer writes the file. A
/// function waits only while 64 MiB of copies are pending. If the file cannot be written, for
/// example on a full disk, training continues: the file is cut after its last whole record, later
/// events are dropped, and `Flush` throws the reason. Thread-safe.
class SummaryWriter {
 public:
  /// Throws Error kSystem, with the path and the reason, if the file cannot be created.
  explicit SummaryWriter(const std::string& folder, const SummaryWriterOptions& options = {});
  /// Writes the pending events and ignores errors. Call Flush before it to see errors.
  ~SummaryWriter();
  SummaryWriter(const SummaryWriter&) = delete;
  SummaryWriter& operator=(const SummaryWriter&) = delete;

  void Scalar(const std::string& tag, double value, int64_t step);
  /// Writes the distribution of `values`; see Histogram.
  void Histogram(const std::string& tag, std::span<const float> values, int64_t step);
  /// Writes `text` in Markdown.
  void Text(const std::string& tag, const std::string& text, int64_t step);
  /// `pixels` is (height, width, channels): grey, or red, green and blue. Throws the errors of
  /// ToPng.
  void Image(
      const std::string& tag, int height, int width, int channels, std::span<const uint8_t> pixels,
      int64_t step);
  /// Begin and end a session of the HParams plugin, once per folder. `metrics` are tags of scalars
  /// in this folder; the plugin shows their last values. A session without an end has no status.
  void BeginSession(HParams hparams, std::vector<std::string> metrics);
  void EndSession(SessionStatus status);
  /// Call Graph once per folder. GraphOf makes the nodes of a network.
  void Graph(std::vector<GraphNode> nodes);

  /// Returns when all events are in the file. Throws Error kSystem, with the path and the reason,
  /// if the file could not be written.
  void Flush();

  const std::string& path() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

/// The graph of a network for TensorBoard: the node "input", then one box per layer. The box has
/// the layer, its parameters and its ReLU activation.
///   writer.Graph(GraphOf(model.input_shape(), model.layers()));
std::vector<GraphNode> GraphOf(const Shape& input, const std::vector<const Layer*>& layers);

/// Writes a histogram of each parameter's values. The tag is Keras's: the parameter's name and
/// "/histogram". The values are copied, so a large network takes some time. Throws Error
/// kInvalidArgument if the values are not f32.
void WriteHistograms(const std::vector<Parameter>& parameters, int64_t step, SummaryWriter& writer);

}  // namespace dtrun::models

#endif  // DTRUN_MODELS_FORMATS_TENSORBOARD_SUMMARY_WRITER_H_
