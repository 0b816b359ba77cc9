#ifndef DTRUN_MODELS_LAYERS_AVERAGE_POOL2D_H_
#define DTRUN_MODELS_LAYERS_AVERAGE_POOL2D_H_

#include "models/layers/window_pool2d.h"

namespace dtrun::models {

/// The mean of each window, channel by channel, over the pixels that are inside the image.
class AveragePool2D : public WindowPool2D {
 public:
  /// Windows side by side.
  explicit AveragePool2D(int size = 2) : AveragePool2D(Window{size, size}) {}
  explicit AveragePool2D(const Window& window) : WindowPool2D(Operation::kAverage, window) {}
};

}  // namespace dtrun::models

#endif
