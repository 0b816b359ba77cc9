#include "models/layers/window_settings.h"

#include <cstdint>
#include <variant>

namespace dtrun::models {
namespace {

// Pixels are a number.
void SetPadding(const Padding& padding, LayerSettings& settings) {
  if (padding.is_same() || padding.is_valid()) {
    settings.Set("padding", padding.is_same() ? "same" : "valid");
  } else {
    settings.Set("padding", padding.pixels());
  }
}

Padding PaddingOf(const LayerSettings& settings, int most) {
  if (!settings.Has("padding")) return Padding::Valid();
  if (std::holds_alternative<int64_t>(settings.values().at("padding")))
    return Padding::Pixels(settings.Int("padding", 0, most));
  return settings.OneOf("padding", {"valid", "same"}) == "same" ? Padding::Same()
                                                                : Padding::Valid();
}

}  // namespace

void SetWindow(const std::string& size_name, const Window& window, LayerSettings& settings) {
  settings.Set(size_name, window.size).Set("strides", window.stride);
  SetPadding(window.padding, settings);
}

Window WindowOf(
    const LayerSettings& settings, const std::string& size_name, int most,
    const Window& otherwise) {
  Window window = otherwise;
  window.size = settings.Int(size_name, 1, most);
  if (settings.Has("strides")) window.stride = settings.Int("strides", 1, most);
  window.padding = PaddingOf(settings, most);
  return window;
}

}  // namespace dtrun::models
