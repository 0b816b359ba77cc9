#include "models/layers/window_settings.h"

#include <dtrun/error.h>

#include <charconv>

#include "models/text.h"

namespace dtrun::models {
namespace {

std::string PaddingText(const Padding& padding) {
  if (padding.is_same()) return "same";
  return padding.is_valid() ? "valid" : std::to_string(padding.pixels());
}

Padding ParsePadding(const std::string& text, int most) {
  if (text == "valid") return Padding::Valid();
  if (text == "same") return Padding::Same();
  int pixels = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, pixels);
  if (error == std::errc() && stop == end && pixels >= 1 && pixels <= most)
    return Padding::Pixels(pixels);
  throw Error(
      ErrorCode::kInvalidArgument, Text(
                                       "padding: '", text.substr(0, 40),
                                       "', expected valid, same or a number from 1 to ", most));
}

}  // namespace

void SetWindow(const std::string& size_name, const Window& window, LayerSettings& settings) {
  settings.Set(size_name, window.size)
      .Set("strides", window.stride)
      .Set("padding", PaddingText(window.padding));
}

Window WindowOf(
    const LayerSettings& settings, const std::string& size_name, int most,
    const Window& otherwise) {
  Window window = otherwise;
  window.size = settings.Int(size_name, 1, most);
  if (settings.Has("strides")) window.stride = settings.Int("strides", 1, most);
  if (settings.Has("padding")) window.padding = ParsePadding(settings.Text("padding"), most);
  return window;
}

}  // namespace dtrun::models
