#include "models/formats/model/model_structure.h"

#include <dtrun/error.h>

#include <cstdint>
#include <nlohmann/json.hpp>

#include "models/message_text.h"

namespace dtrun::models {
namespace {

using nlohmann::json;

constexpr char kFormat[] = "dtrun model";
constexpr int64_t kVersion = 1;
constexpr int64_t kMostPixels = 1 << 16;  // limit of a side and of the channels
constexpr int kDeepest = 8;               // limit of layers inside layers
constexpr size_t kMostLayers = 10000;

// Shortened, because the value may be anything, even bytes that are not UTF-8.
std::string Excerpt(const json& value) {
  constexpr size_t kLongest = 60;
  if (value.is_array() && value.size() > 8) return Text("a list of ", value.size());
  if (value.is_object()) return "an object";
  if (value.is_array()) {
    for (const json& element : value) {
      if (element.is_structured()) return Text("a list of ", value.size());
    }
  }
  std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace);
  if (text.size() > kLongest) text = text.substr(0, kLongest) + "...";
  return text;
}

const json& Find(const json& object, const char* name, const std::string& expected) {
  const auto found = object.find(name);
  if (found == object.end()) RefuseArgument(Text(name, ": missing, expected ", expected));
  return *found;
}

std::string TextOf(const json& object, const char* name, const std::string& expected) {
  const json& value = Find(object, name, expected);
  if (!value.is_string()) RefuseArgument(Text(name, ": ", Excerpt(value), ", expected ", expected));
  return value.get<std::string>();
}

bool IsInteger(const json& value, int64_t least, int64_t most) {
  if (value.is_number_unsigned() && value.get<uint64_t>() > uint64_t(INT64_MAX)) return false;
  return value.is_number_integer() && value.get<int64_t>() >= least && value.get<int64_t>() <= most;
}

void CheckHead(const json& root) {
  const std::string format = Text("\"", kFormat, "\"");
  if (TextOf(root, "format", format) != kFormat)
    RefuseArgument(Text("format: ", Excerpt(root["format"]), ", expected ", format));
  const json& version = Find(root, "version", Text(kVersion));
  if (!IsInteger(version, kVersion, kVersion))
    RefuseArgument(Text("version: ", Excerpt(version), ", expected ", kVersion));
}

Shape ParseShape(const json& root) {
  const std::string expected = Text("3 integers from 1 to ", kMostPixels);
  const json& list = Find(root, "input_shape", expected);
  bool right = list.is_array() && list.size() == 3;
  for (size_t i = 0; right && i < 3; ++i) right = IsInteger(list[i], 1, kMostPixels);
  if (!right) RefuseArgument(Text("input_shape: ", Excerpt(list), ", expected ", expected));
  return {list[0].get<int>(), list[1].get<int>(), list[2].get<int>()};
}

std::vector<LayerConfig> ParseLayers(const json& list, int depth);

LayerSettings::Value ParseSetting(const json& value, int depth) {
  if (value.is_boolean()) return value.get<bool>();
  if (IsInteger(value, INT64_MIN, INT64_MAX)) return value.get<int64_t>();
  if (value.is_number()) return value.get<double>();
  if (value.is_string()) return value.get<std::string>();
  if (value.is_array()) return ParseLayers(value, depth + 1);
  RefuseArgument(
      Text(Excerpt(value), ", expected a number, text, true, false or a list of layers"));
}

LayerConfig ParseLayer(const json& value, int depth) {
  if (!value.is_object())
    RefuseArgument(Text(Excerpt(value), ", expected an object with kind and settings"));
  LayerConfig layer;
  layer.kind = TextOf(value, "kind", "a text");
  const std::string expected = "an object";
  const json& settings = Find(value, "settings", expected);
  if (!settings.is_object())
    RefuseArgument(Text("settings: ", Excerpt(settings), ", expected ", expected));
  for (const auto& [name, setting] : settings.items()) {
    try {
      layer.settings.Set(name, ParseSetting(setting, depth));
    } catch (const Error& error) {
      RefuseArgument(Text("settings: ", name.substr(0, 40), ": ", error.what()));
    }
  }
  return layer;
}

std::vector<LayerConfig> ParseLayers(const json& list, int depth) {
  if (depth > kDeepest)
    RefuseArgument(Text("layers at depth ", depth, ", expected a depth of at most ", kDeepest));
  if (list.size() > kMostLayers)
    RefuseArgument(Text(list.size(), " layers, expected at most ", kMostLayers));
  std::vector<LayerConfig> layers;
  for (const json& value : list) {
    try {
      layers.push_back(ParseLayer(value, depth));
    } catch (const Error& error) {
      RefuseArgument(Text("layer ", layers.size(), ": ", error.what()));
    }
  }
  return layers;
}

// The weights file is in the folder of model.json, so its name must not be a path.
std::string ParseWeights(const json& root) {
  const std::string expected = "the name of a file in the same folder";
  const std::string name = TextOf(root, "weights", expected);
  const bool plain = !name.empty() && name != "." && name != ".." && name.size() < 256 &&
                     name.find('/') == std::string::npos && name.find('\0') == std::string::npos;
  if (!plain) RefuseArgument(Text("weights: ", Excerpt(root["weights"]), ", expected ", expected));
  return name;
}

std::map<std::string, std::string> ParseMetadata(const json& root) {
  std::map<std::string, std::string> metadata;
  const std::string expected = "an object of texts";
  const json& object = Find(root, "metadata", expected);
  if (!object.is_object())
    RefuseArgument(Text("metadata: ", Excerpt(object), ", expected ", expected));
  for (const auto& [name, value] : object.items()) {
    if (!value.is_string())
      RefuseArgument(
          Text("metadata: ", name.substr(0, 40), ": ", Excerpt(value), ", expected a text"));
    metadata[name] = value.get<std::string>();
  }
  return metadata;
}

json ToJson(const std::vector<LayerConfig>& layers);

struct SettingToJson {
  json operator()(const std::vector<LayerConfig>& layers) const { return ToJson(layers); }
  template <typename T>
  json operator()(const T& value) const {
    return value;
  }
};

json ToJson(const std::vector<LayerConfig>& layers) {
  json list = json::array();
  for (const LayerConfig& layer : layers) {
    json settings = json::object();
    for (const auto& [name, value] : layer.settings.values())
      settings[name] = std::visit(SettingToJson(), value);
    list.push_back({{"kind", layer.kind}, {"settings", settings}});
  }
  return list;
}

}  // namespace

std::string ToJson(const ModelStructure& structure) {
  const Shape& input = structure.input;
  const nlohmann::ordered_json root = {
      {"format", kFormat},
      {"version", kVersion},
      {"input_shape", {input.height, input.width, input.channels}},
      {"weights", structure.weights},
      {"layers", ToJson(structure.layers)},
      {"metadata", structure.metadata}};
  return root.dump(1, ' ', false, json::error_handler_t::replace) + "\n";
}

ModelStructure ParseStructure(const std::string& text) {
  const json root = json::parse(text, nullptr, false);
  if (root.is_discarded()) RefuseArgument("not JSON");
  if (!root.is_object()) RefuseArgument(Text(Excerpt(root), ", expected an object"));
  CheckHead(root);
  ModelStructure structure;
  structure.input = ParseShape(root);
  structure.weights = ParseWeights(root);
  const json& layers = Find(root, "layers", "a list");
  if (!layers.is_array() || layers.empty())
    RefuseArgument(Text("layers: ", Excerpt(layers), ", expected a list of layers"));
  structure.layers = ParseLayers(layers, 1);
  structure.metadata = ParseMetadata(root);
  return structure;
}

namespace {

constexpr double kMostActivations = 1 << 24, kMostParameters = 1u << 31;

void CheckSize(const Shape& shape) {
  if (shape.height < 1 || shape.width < 1 || shape.channels < 1)
    RefuseArgument(Text(
        "gives an output of ", ToString(shape), ", expected sides and channels of at least 1"));
  if (double(shape.height) * shape.width * shape.channels > kMostActivations)
    RefuseArgument(Text("is too large: ", ToString(shape), " values of one example"));
}

void CheckSize(const std::vector<ParameterSpec>& specs) {
  for (const ParameterSpec& spec : specs) {
    double count = 1;
    for (int size : spec.shape) {
      if (size < 1) RefuseArgument(Text(spec.name, " has a size of ", size));
      count *= size;
    }
    if (count > kMostParameters)
      RefuseArgument(Text("is too large: ", count, " values of its ", spec.name));
  }
}

LayerShapes OneOf(const Layer& layer, const Shape& input) {
  LayerShapes shapes{&layer, input, layer.OutputShape(input), {}, {}};
  CheckSize(shapes.output);
  shapes.parameters = layer.ParameterSpecs(input);
  shapes.buffers = layer.BufferSpecs(input);
  CheckSize(shapes.parameters);
  CheckSize(shapes.buffers);
  return shapes;
}

}  // namespace

std::vector<LayerShapes> ShapesOf(const Shape& input, const std::vector<const Layer*>& layers) {
  std::vector<LayerShapes> all;
  Shape shape = input;
  for (const Layer* layer : layers) {
    try {
      all.push_back(OneOf(*layer, shape));
    } catch (const Error& error) {
      throw Error(
          error.code(), Text("layer ", all.size(), " (", layer->description(), ") ", error.what()));
    }
    shape = all.back().output;
  }
  return all;
}

uint64_t CountOf(const std::vector<LayerShapes>& layers) {
  uint64_t count = 0;
  for (const LayerShapes& layer : layers) {
    for (const auto* specs : {&layer.parameters, &layer.buffers}) {
      for (const ParameterSpec& spec : *specs) count += spec.count();
    }
  }
  return count;
}

}  // namespace dtrun::models
