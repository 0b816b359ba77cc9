#ifndef DTRUN_MODELS_LAYERS_WINDOW_SETTINGS_H_
#define DTRUN_MODELS_LAYERS_WINDOW_SETTINGS_H_

#include <string>

#include "models/layers/settings.h"
#include "models/layers/window.h"

namespace dtrun::models {

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

#endif
