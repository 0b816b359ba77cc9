#ifndef DTRUN_MODELS_LAYERS_WINDOW_H_
#define DTRUN_MODELS_LAYERS_WINDOW_H_

#include <string>

#include "models/layers/settings.h"
#include "models/layers/tensor.h"

namespace dtrun::models {

/// How far a window may reach over the edges of its input, where it finds zeros (a pooling's
/// window: nothing).
///   Padding::Valid()    not at all: output = (input - size) / stride + 1, rounded down
///   Padding::Same()     output = input / stride, rounded up; an odd pixel goes to the right and
///                       below, as in Keras
///   Padding::Pixels(n)  n at each edge, as in PyTorch
class Padding {
 public:
  static constexpr Padding Valid() { return Padding(0); }
  static constexpr Padding Same() { return Padding(kSame); }
  static constexpr Padding Pixels(int n) { return Padding(n); }

  constexpr bool is_same() const { return pixels_ == kSame; }
  constexpr bool is_valid() const { return pixels_ == 0; }
  /// 0 for Valid(); not for Same().
  constexpr int pixels() const { return pixels_; }
  bool operator==(const Padding&) const = default;

 private:
  static constexpr int kSame = -1;
  constexpr explicit Padding(int pixels) : pixels_(pixels) {}

  int pixels_;
};

/// Square windows over an image, the upper left ones first.
struct Window {
  int size = 1, stride = 1;
  Padding padding = Padding::Valid();
};

/// Where the windows lie along one side of the input.
struct WindowExtent {
  int before = 0, after = 0;  ///< pixels of padding
  int output = 0;             ///< windows
};

/// `input` at least 1 and all of `window` checked by WindowOutput.
WindowExtent ExtentOf(const Window& window, int input);

/// Height and width of the output, with `channels`. Throws Error kInvalidArgument when a setting is
/// out of range or the input has no room for one window.
Shape WindowOutput(const Window& window, const Shape& input, int channels);

/// "3x3", "3x3 stride 2", "3x3 stride 2 same", "7x7 stride 2 padding 3"
std::string ToString(const Window& window);

/// A window as a layer writes it down: its size by the name `size_name`, "strides", and "padding",
/// which is
/// "valid", "same" or the pixels at each edge, a number.
void SetWindow(const std::string& size_name, const Window& window, LayerSettings& settings);

/// And reads it again. What is not there is `otherwise`'s stride, and "valid". Sides and strides
/// are at most `most`.
Window WindowOf(
    const LayerSettings& settings, const std::string& size_name, int most,
    const Window& otherwise = {});

}  // namespace dtrun::models

#endif  // DTRUN_MODELS_LAYERS_WINDOW_H_
