#ifndef DTRUN_MODELS_LAYERS_SETTINGS_H_
#define DTRUN_MODELS_LAYERS_SETTINGS_H_

#include <cstdint>
#include <initializer_list>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "models/layers/tensor.h"

namespace dtrun::models {

struct LayerConfig;

/// The settings of a layer, with Keras's names: {"filters": 32, "kernel_size": 3, "activation":
/// "relu"}. A layer that holds other layers has lists of them: {"main": [...], "shortcut": [...]}.
///
/// If a setting is missing or has another type or range, the reading functions throw Error
/// kInvalidArgument. The text is one line with the name, the value found and the value expected:
///   pool_size: 0, expected an integer from 1 to 15
class LayerSettings {
 public:
  using Value = std::variant<bool, int64_t, double, std::string, std::vector<LayerConfig>>;

  LayerSettings& Set(const std::string& name, bool value);
  LayerSettings& Set(const std::string& name, int value);
  LayerSettings& Set(const std::string& name, double value);
  LayerSettings& Set(const std::string& name, const std::string& value);
  LayerSettings& Set(const std::string& name, const char* value);
  LayerSettings& Set(const std::string& name, std::vector<LayerConfig> value);
  LayerSettings& Set(const std::string& name, Value value);

  bool Has(const std::string& name) const;
  bool Flag(const std::string& name) const;
  /// An integer from `least` to `most`.
  int Int(const std::string& name, int least, int most) const;
  double Number(const std::string& name) const;
  const std::string& Text(const std::string& name) const;
  /// A text that is one of `names`.
  const std::string& OneOf(const std::string& name, std::initializer_list<const char*> names) const;
  const std::vector<LayerConfig>& Layers(const std::string& name) const;

  const std::map<std::string, Value>& values() const { return values_; }
  bool operator==(const LayerSettings&) const = default;

 private:
  const Value& Find(const std::string& name, const std::string& expected) const;

  std::map<std::string, Value> values_;
};

/// The kind and settings of a layer, as in a file.
struct LayerConfig {
  std::string kind;
  LayerSettings settings;

  bool operator==(const LayerConfig&) const = default;
};

/// How far a window may reach over the edges of its input. Convolutions read zeros there. Poolings
/// ignore these pixels.
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
  /// 0 for Valid(). Do not call it for Same().
  constexpr int pixels() const { return pixels_; }
  bool operator==(const Padding&) const = default;

 private:
  static constexpr int kSame = -1;
  constexpr explicit Padding(int pixels) : pixels_(pixels) {}

  int pixels_;
};

/// Square windows over an image, from the upper left corner.
struct Window {
  int size = 1, stride = 1;
  Padding padding = Padding::Valid();
};

/// The number of windows and the padding along one side of the input.
struct WindowExtent {
  int before = 0, after = 0;  ///< pixels of padding
  int output = 0;             ///< number of windows
};

/// `input` must be at least 1, and WindowOutput must have checked `window`.
WindowExtent ExtentOf(const Window& window, int input);

/// The height and width of the output, with `channels`. Throws Error kInvalidArgument if a setting
/// is out of range, or if the input is too small for one window.
Shape WindowOutput(const Window& window, const Shape& input, int channels);

/// "3x3", "3x3 stride 2", "3x3 stride 2 same", "7x7 stride 2 padding 3"
std::string ToString(const Window& window);

/// Writes a window to the settings of a layer: its size as `size_name`, its stride as "strides",
/// and "padding". Padding is "valid", "same" or the number of pixels at each edge.
void SetWindow(const std::string& size_name, const Window& window, LayerSettings& settings);

/// Reads the window of a layer from its settings. The default of "strides" is the stride of
/// `otherwise`; the default of "padding" is "valid". Sizes, strides and padding are at most `most`.
Window WindowOf(
    const LayerSettings& settings, const std::string& size_name, int most,
    const Window& otherwise = {});

}  // namespace dtrun::models

#endif
