#include "models/layers/settings.h"

#include <dtrun/error.h>

#include <algorithm>
#include <cstdint>
#include <variant>

#include "models/message_text.h"

namespace dtrun::models {
namespace {

// Describes a value in an error message. Long texts are cut.
struct Describe {
  std::string operator()(bool value) const { return value ? "true" : "false"; }
  std::string operator()(int64_t value) const { return models::Text(value); }
  std::string operator()(double value) const { return models::Text(value); }
  std::string operator()(const std::string& value) const {
    constexpr size_t kLongest = 40;
    if (value.size() > kLongest) return models::Text("'", value.substr(0, kLongest), "...'");
    return models::Text("'", value, "'");
  }
  std::string operator()(const std::vector<LayerConfig>& value) const {
    return models::Text("a list of ", value.size(), " layers");
  }
};

[[noreturn]] void Refuse(
    const std::string& name, const LayerSettings::Value& found, const std::string& expected) {
  throw Error(
      ErrorCode::kInvalidArgument,
      models::Text(name, ": ", std::visit(Describe(), found), ", expected ", expected));
}

}  // namespace

LayerSettings& LayerSettings::Set(const std::string& name, bool value) {
  return Set(name, Value(value));
}
LayerSettings& LayerSettings::Set(const std::string& name, int value) {
  return Set(name, Value(int64_t{value}));
}
LayerSettings& LayerSettings::Set(const std::string& name, double value) {
  return Set(name, Value(value));
}
LayerSettings& LayerSettings::Set(const std::string& name, const std::string& value) {
  return Set(name, Value(value));
}
LayerSettings& LayerSettings::Set(const std::string& name, const char* value) {
  return Set(name, Value(std::string(value)));
}
LayerSettings& LayerSettings::Set(const std::string& name, std::vector<LayerConfig> value) {
  return Set(name, Value(std::move(value)));
}
LayerSettings& LayerSettings::Set(const std::string& name, Value value) {
  values_.insert_or_assign(name, std::move(value));
  return *this;
}

bool LayerSettings::Has(const std::string& name) const { return values_.count(name) > 0; }

const LayerSettings::Value& LayerSettings::Find(
    const std::string& name, const std::string& expected) const {
  const auto found = values_.find(name);
  if (found == values_.end()) {
    throw Error(ErrorCode::kInvalidArgument, models::Text(name, ": missing, expected ", expected));
  }
  return found->second;
}

bool LayerSettings::Flag(const std::string& name) const {
  const std::string expected = "true or false";
  const Value& found = Find(name, expected);
  const bool* value = std::get_if<bool>(&found);
  if (value == nullptr) Refuse(name, found, expected);
  return *value;
}

int LayerSettings::Int(const std::string& name, int least, int most) const {
  const std::string expected = models::Text("an integer from ", least, " to ", most);
  const Value& found = Find(name, expected);
  const int64_t* value = std::get_if<int64_t>(&found);
  if (value == nullptr || *value < least || *value > most) Refuse(name, found, expected);
  return static_cast<int>(*value);
}

double LayerSettings::Number(const std::string& name) const {
  const std::string expected = "a number";
  const Value& found = Find(name, expected);
  if (const int64_t* value = std::get_if<int64_t>(&found)) return static_cast<double>(*value);
  const double* value = std::get_if<double>(&found);
  if (value == nullptr) Refuse(name, found, expected);
  return *value;
}

const std::string& LayerSettings::Text(const std::string& name) const {
  const std::string expected = "a text";
  const Value& found = Find(name, expected);
  const std::string* value = std::get_if<std::string>(&found);
  if (value == nullptr) Refuse(name, found, expected);
  return *value;
}

const std::string& LayerSettings::OneOf(
    const std::string& name, std::initializer_list<const char*> names) const {
  std::string expected;
  for (const char* one : names) expected += models::Text(expected.empty() ? "" : " or ", one);
  const Value& found = Find(name, expected);
  const std::string* value = std::get_if<std::string>(&found);
  const bool known = value != nullptr && std::any_of(names.begin(), names.end(), [&](auto one) {
                       return *value == one;
                     });
  if (!known) Refuse(name, found, expected);
  return *value;
}

const std::vector<LayerConfig>& LayerSettings::Layers(const std::string& name) const {
  const std::string expected = "a list of layers";
  const Value& found = Find(name, expected);
  const auto* value = std::get_if<std::vector<LayerConfig>>(&found);
  if (value == nullptr) Refuse(name, found, expected);
  return *value;
}

namespace {

// If the padding were as large as a window, some windows would hold only zeros.
void CheckSettings(const Window& window) {
  if (window.size < 1) RefuseArgument(Text("needs a window of at least 1x1, got ", window.size));
  if (window.stride < 1) RefuseArgument(Text("needs a stride of at least 1, got ", window.stride));
  if (window.padding.is_same()) return;
  const int pixels = window.padding.pixels();
  if (pixels < 0 || pixels >= window.size)
    RefuseArgument(Text("needs a padding from 0 to ", window.size - 1, ", got ", pixels));
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
      RefuseArgument(
          Text("needs an input of at least ", least, "x", least, ", got ", ToString(input)));
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

namespace {

// Stores a padding in pixels as a number, and other paddings by name.
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
