#ifndef DTRUN_MODELS_FORMATS_TENSORBOARD_EVENTS_H_
#define DTRUN_MODELS_FORMATS_TENSORBOARD_EVENTS_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "models/layers/settings.h"

namespace dtrun::models {

/// How values are distributed over buckets of equal width between the smallest and the largest.
struct Histogram {
  double count = 0, min = 0, max = 0, sum = 0, sum_of_squares = 0;
  std::vector<double> upper_limits;  ///< of the buckets, ascending; the last is max
  std::vector<double> counts;        ///< of values in each; the last takes max too
};

/// With 30 buckets, as Keras has them; one when all values are equal, none without a value. What is
/// not finite is left out.
Histogram HistogramOf(std::span<const float> values);

/// A node of the graph that TensorBoard shows. A "/" in the name puts it into a box with the others
/// of the same beginning.
struct GraphNode {
  std::string name;                 ///< "layer0_conv2d/relu"
  std::string op;                   ///< "Relu"
  std::vector<std::string> inputs;  ///< names of nodes
  std::vector<int64_t> shape;       ///< of its output; -1: any
  LayerSettings attributes;         ///< lists of layers among them are left out
};

/// The messages of event files: tensorflow.Event, serialised. TensorBoard's source has their
/// definitions (compat/proto/event.proto, summary.proto, graph.proto). `wall_time` is in seconds
/// since 1970.
double SecondsSince1970();
std::string VersionEvent(double wall_time);
std::string GraphEvent(double wall_time, const std::vector<GraphNode>& nodes);

struct EventHead {
  double wall_time = 0;
  int64_t step = 0;
  std::string tag;
};
std::string ScalarEvent(const EventHead& head, float value);
std::string HistogramEvent(const EventHead& head, const Histogram& histogram);
std::string TextEvent(const EventHead& head, const std::string& text);
std::string ImageEvent(
    const EventHead& head, int height, int width, int channels, const std::string& png);

/// CRC-32C (Castagnoli; RFC 3720, appendix B.4).
uint32_t Crc32c(std::string_view bytes);

/// `data` as a record of a TFRecord file, which is what event files consist of:
///   length (8 bytes) | masked CRC-32C of these | data | masked CRC-32C of data
/// all little-endian. Masked: rotated right by 15 bits, plus 0xa282ead8, so that the checksum of
/// bytes which contain checksums stays a good one.
std::string ToRecord(std::string_view data);

/// An event file that grows by whole records. Not thread-safe.
class EventFile {
 public:
  /// Makes the folder and in it a file of a new name, which begins with the format's version.
  /// Throws Error kSystem with the path and the reason.
  explicit EventFile(const std::string& folder);
  ~EventFile();
  EventFile(const EventFile&) = delete;
  EventFile& operator=(const EventFile&) = delete;

  /// Appends records. After an error, which `problem` then tells, the file ends with its last whole
  /// piece and stays as it is.
  void Append(const std::string& records);

  const std::string& path() const { return path_; }
  /// "logs/events...: cannot be written: No space left on device"; empty as long as all is well
  const std::string& problem() const { return problem_; }

 private:
  std::string path_, problem_;
  int file_ = -1;
  int64_t size_ = 0;
};

}  // namespace dtrun::models

#endif  // DTRUN_MODELS_FORMATS_TENSORBOARD_EVENTS_H_
