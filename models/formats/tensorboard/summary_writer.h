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
  /// What was written is in the file after so many seconds at the latest.
  double flush_seconds = 10;
};

/// Writes an event file that TensorBoard shows:
///
///   SummaryWriter train("logs/train"), validation("logs/validation");
///   train.Scalar("epoch_loss", 0.41, epoch);
///
///   tensorboard --logdir logs
///
/// The file is `folder`/events.out.tfevents.<seconds>.<host>.<pid>.<number>; the folder is made. A
/// new writer makes a new file, and TensorBoard shows all files of a folder as one run. In a job
/// one rank writes.
///
/// The functions keep a copy of what they are given and return; a thread of the writer's own puts
/// it into the file. They wait for that thread only while 64 MiB are kept. When the file cannot be
/// written any more, on a full disk, say, it is cut after its last whole record, what comes after
/// is dropped, and `Flush` says why: training goes on. Thread-safe.
class SummaryWriter {
 public:
  /// Throws Error kSystem, with the path and the reason, when the file cannot be made.
  explicit SummaryWriter(const std::string& folder, const SummaryWriterOptions& options = {});
  /// Writes what is left, and says nothing of errors: Flush before.
  ~SummaryWriter();
  SummaryWriter(const SummaryWriter&) = delete;
  SummaryWriter& operator=(const SummaryWriter&) = delete;

  void Scalar(const std::string& tag, double value, int64_t step);
  /// The distribution of `values` (see Histogram).
  void Histogram(const std::string& tag, std::span<const float> values, int64_t step);
  /// Markdown.
  void Text(const std::string& tag, const std::string& text, int64_t step);
  /// `pixels` (height, width, channels), grey or red, green, blue. Throws Error as ToPng does.
  void Image(
      const std::string& tag, int height, int width, int channels, std::span<const uint8_t> pixels,
      int64_t step);
  /// Once per folder (see GraphOf).
  void Graph(std::vector<GraphNode> nodes);

  /// Returns when all of it is in the file. Throws Error kSystem, with the path and the reason,
  /// when it is not.
  void Flush();

  const std::string& path() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

/// The graph of a network for TensorBoard: "input", then a box per layer with the layer, its
/// parameters and, if it has one, its activation.
///   writer.Graph(GraphOf(model.input_shape(), model.layers()));
std::vector<GraphNode> GraphOf(const Shape& input, const std::vector<const Layer*>& layers);

/// Writes how the values of each parameter are distributed, with Keras's tag: its name and
/// "/histogram". The values are copied, those of a large network take a while. Throws Error
/// kInvalidArgument when they are not f32.
void WriteHistograms(const std::vector<Parameter>& parameters, int64_t step, SummaryWriter& writer);

}  // namespace dtrun::models

#endif  // DTRUN_MODELS_FORMATS_TENSORBOARD_SUMMARY_WRITER_H_
