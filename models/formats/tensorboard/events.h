#ifndef DTRUN_MODELS_FORMATS_TENSORBOARD_EVENTS_H_
#define DTRUN_MODELS_FORMATS_TENSORBOARD_EVENTS_H_

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "models/layers/settings.h"

namespace dtrun::models {

/// The distribution of values over buckets of equal width between the smallest and the largest
/// value.
struct Histogram {
  double count = 0, min = 0, max = 0, sum = 0, sum_of_squares = 0;
  std::vector<double> upper_limits;  ///< of the buckets, ascending; the last one is max
  std::vector<double> counts;        ///< of values in each bucket; the last bucket includes max
};

/// Makes 30 buckets, as Keras does. One bucket if all values are equal, no bucket without values.
/// Skips infinities and NaNs.
Histogram HistogramOf(std::span<const float> values);

/// A node of the graph that TensorBoard shows. TensorBoard draws a box around nodes with the same
/// prefix before a "/" in their names.
struct GraphNode {
  std::string name;                 ///< "layer0_conv2d/relu"
  std::string op;                   ///< "Relu"
  std::vector<std::string> inputs;  ///< names of nodes
  std::vector<int64_t> shape;       ///< of the output; -1: any size
  LayerSettings attributes;         ///< except lists of layers
};

/// The messages of event files: serialised tensorflow.Event messages. TensorBoard's source defines
/// them in compat/proto/event.proto, summary.proto and graph.proto. `wall_time` is in seconds since
/// 1970.
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

/// The hyper-parameters of a training by name, for TensorBoard's HParams plugin.
///   {{"optimizer", "adam"}, {"learning_rate", 1e-3}, {"overlap", true}}
using HParams = std::map<std::string, std::variant<bool, double, std::string>>;

/// How a training ended.
enum class SessionStatus { kSuccess = 1, kFailure = 2 };

/// The summaries of the HParams plugin: kinds of hyper-parameters and tags of metrics, values at
/// the start, status at the end. TensorBoard's source defines their messages in
/// plugins/hparams/plugin_data.proto and api.proto.
std::string HParamsExperimentEvent(
    double wall_time, const HParams& hparams, const std::vector<std::string>& metrics);
std::string HParamsStartEvent(double wall_time, const HParams& hparams);
std::string HParamsEndEvent(double wall_time, SessionStatus status);

/// CRC-32C (Castagnoli; RFC 3720, appendix B.4).
uint32_t Crc32c(std::string_view bytes);

/// Makes `data` a record of a TFRecord file. An event file is a sequence of such records:
///   length (8 bytes) | masked CRC-32C of the length | data | masked CRC-32C of the data
/// All numbers are little-endian. Masking rotates a CRC right by 15 bits and adds 0xa282ead8. So a
/// checksum over bytes that contain checksums stays effective.
std::string ToRecord(std::string_view data);

/// An event file that grows by whole records. Not thread-safe.
class EventFile {
 public:
  /// Creates the folder and a new file in it. The file begins with the format's version. Throws
  /// Error kSystem with the path and the reason.
  explicit EventFile(const std::string& folder);
  ~EventFile();
  EventFile(const EventFile&) = delete;
  EventFile& operator=(const EventFile&) = delete;

  /// Appends whole records. After an error, `problem` is set, the file is cut back to its size
  /// before the call, and later calls return at once.
  void Append(const std::string& records);

  const std::string& path() const { return path_; }
  /// The error, such as "logs/events...: cannot be written: No space left on device". Empty without
  /// one.
  const std::string& problem() const { return problem_; }

 private:
  std::string path_, problem_;
  int file_ = -1;
  int64_t size_ = 0;
};

}  // namespace dtrun::models

#endif  // DTRUN_MODELS_FORMATS_TENSORBOARD_EVENTS_H_
