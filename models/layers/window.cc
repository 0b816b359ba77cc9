#include "models/layers/window.h"

#include <dtrun/error.h>

#include <algorithm>

#include "models/text.h"

namespace dtrun::models {
namespace {

[[noreturn]] void Refuse(const std::string& text) {
  throw Error(ErrorCode::kInvalidArgument, text);
}

// Padding of a whole window would make windows of zeros alone.
void CheckSettings(const Window& window) {
  if (window.size < 1) Refuse(Text("needs a window of at least 1x1, got ", window.size));
  if (window.stride < 1) Refuse(Text("needs a stride of at least 1, got ", window.stride));
  if (window.padding.is_same()) return;
  const int pixels = window.padding.pixels();
  if (pixels < 0 || pixels >= window.size)
    Refuse(Text("needs a padding from 0 to ", window.size - 1, ", got ", pixels));
}

}  // namespace

WindowExtent ExtentOf(const Window& window, int input) {
  if (window.padding.is_same()) {
    const int output = (input - 1) / window.stride + 1;
    const int padding = std::max(0, (output - 1) * window.stride + window.size - input);
    return {padding / 2, padding - padding / 2, output};
  }
  const int pixels = window.padding.pixels();
  return {pixels, pixels, (input + 2 * pixels - window.size) / window.stride + 1};
}

Shape WindowOutput(const Window& window, const Shape& input, int channels) {
  CheckSettings(window);
  if (!window.padding.is_same()) {
    const int least = std::max(1, window.size - 2 * window.padding.pixels());
    if (input.height < least || input.width < least) {
      Refuse(Text("needs an input of at least ", least, "x", least, ", got ", ToString(input)));
    }
  }
  return {ExtentOf(window, input.height).output, ExtentOf(window, input.width).output, channels};
}

std::string ToString(const Window& window) {
  std::string text = Text(window.size, "x", window.size);
  if (window.stride != 1) text += Text(" stride ", window.stride);
  if (window.padding.is_same()) return text + " same";
  if (!window.padding.is_valid()) text += Text(" padding ", window.padding.pixels());
  return text;
}

}  // namespace dtrun::models
