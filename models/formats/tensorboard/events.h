#ifndef DTRUN_MODELS_FORMATS_TENSORBOARD_EVENTS_H_
#define DTRUN_MODELS_FORMATS_TENSORBOARD_EVENTS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "models/formats/tensorboard/histogram.h"
#include "models/layers/settings.h"

namespace dtrun::models {

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

}  // namespace dtrun::models

#endif
