#ifndef DTRUN_MODELS_FORMATS_PNG_H_
#define DTRUN_MODELS_FORMATS_PNG_H_

#include <cstdint>
#include <span>
#include <string>

namespace dtrun::models {

/// A PNG file (W3C, "Portable Network Graphics Specification") of `pixels` (height, width,
/// channels), 8 bits each; channels is 1 (grey) or 3 (red, green, blue). Throws Error
/// kInvalidArgument when a size is not positive, the number of channels is another one, or that of
/// the pixels is not their product.
std::string ToPng(int height, int width, int channels, std::span<const uint8_t> pixels);

}  // namespace dtrun::models

#endif
