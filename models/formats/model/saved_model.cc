#include "models/formats/model/saved_model.h"

#include <dtrun/error.h>
#include <dtrun/tensors.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <vector>

#include "models/formats/model/model_structure.h"
#include "models/formats/whole_file.h"
#include "models/message_text.h"

namespace dtrun::models {
namespace {

namespace fs = std::filesystem;

constexpr char kStructureFile[] = "model.json";
constexpr char kWeightsFiles[][24] = {"weights-1.safetensors", "weights-2.safetensors"};
constexpr size_t kMostStructureBytes = size_t(16) << 20;

// Puts the path before the message of an Error from `use`.
template <typename Use>
auto AboutFile(const std::string& path, const Use& use) {
  try {
    return use();
  } catch (const Error& error) {
    throw Error(error.code(), Text(path, ": ", error.what()));
  }
}

void MakeFolder(const std::string& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) throw Error(ErrorCode::kSystem, Text(folder, ": cannot be made: ", error.message()));
}

std::vector<uint64_t> ShapeOf(const ParameterSpec& spec) {
  return {spec.shape.begin(), spec.shape.end()};
}

// Views of all saved tensors of a network, in its order.
std::vector<NamedTensor> TensorsOf(Sequential& model) {
  std::vector<NamedTensor> tensors;
  const std::vector<NamedBuffer> weights = model.BorrowWeights();
  auto parameter = weights.begin();
  auto buffer = weights.begin() + static_cast<ptrdiff_t>(model.parameters().size());
  for (const LayerShapes& layer : ShapesOf(model.input_shape(), model.layers())) {
    for (const ParameterSpec& spec : layer.parameters) {
      tensors.emplace_back(parameter->name, parameter->buffer, ShapeOf(spec));
      ++parameter;
    }
    for (const ParameterSpec& spec : layer.buffers) {
      tensors.emplace_back(buffer->name, buffer->buffer, ShapeOf(spec));
      ++buffer;
    }
  }
  return tensors;
}

ModelStructure ReadStructure(const std::string& folder) {
  const std::string path = fs::path(folder) / kStructureFile;
  std::error_code error;
  if (!fs::exists(folder, error))
    RefuseArgument(Text(folder, ": not found, expected a saved model"));
  if (!fs::exists(path, error))
    RefuseArgument(Text(folder, ": has no ", kStructureFile, ", expected a saved model"));
  const std::string text = ReadFile(path, kMostStructureBytes);
  return AboutFile(path, [&] { return ParseStructure(text); });
}

// Also applies to layers inside layers.
std::vector<LayerConfig> WithoutSynchronisation(std::vector<LayerConfig> layers) {
  for (LayerConfig& layer : layers) {
    const LayerSettings settings = layer.settings;
    for (const auto& [name, value] : settings.values()) {
      const auto* nested = std::get_if<std::vector<LayerConfig>>(&value);
      if (nested != nullptr) layer.settings.Set(name, WithoutSynchronisation(*nested));
      if (name == "synchronized") layer.settings.Set(name, false);
    }
  }
  return layers;
}

// Returns "" if the folder has no readable model. Such a folder has no old weights to keep.
std::string WeightsThere(const std::string& folder) {
  try {
    return ReadStructure(folder).weights;
  } catch (const Error&) {
    return "";
  }
}

std::string ToString(const std::vector<uint64_t>& shape) {
  std::string text;
  for (uint64_t size : shape) text += Text(text.empty() ? "" : "x", size);
  return text.empty() ? "a scalar" : text;
}

// `found` is null if the file has no tensor of that name.
void CheckTensor(const NamedTensor& wanted, const NamedTensor* found) {
  const std::string expected = Text("f32 ", ToString(wanted.shape));
  if (found == nullptr)
    RefuseArgument(Text("has no tensor ", wanted.name, ", expected ", expected));
  const Buffer& buffer = found->buffer;
  if (buffer.dtype != DType::kF32 || found->shape != wanted.shape) {
    RefuseArgument(Text(
        wanted.name, ": ", NameOf(buffer.dtype), " ", ToString(found->shape), ", expected ",
        expected));
  }
}

// Runs before the network is built. So a wrong structure does not make the process allocate memory.
void CheckCount(
    const std::vector<LayerShapes>& layers, const TensorFile& weights, const std::string& path) {
  uint64_t count = 0;
  for (const NamedTensor& tensor : weights.tensors()) count += tensor.buffer.count;
  if (count != CountOf(layers)) {
    RefuseArgument(Text(
        path, ": ", count, " values, expected ", CountOf(layers), " as ", kStructureFile,
        " describes them"));
  }
}

void FillFrom(const TensorFile& weights, Sequential& model) {
  const std::vector<NamedTensor> wanted = TensorsOf(model);
  for (const NamedTensor& tensor : wanted) CheckTensor(tensor, weights.Find(tensor.name));
  if (weights.tensors().size() != wanted.size())
    RefuseArgument(Text(weights.tensors().size(), " tensors, expected ", wanted.size()));
  for (const NamedTensor& tensor : wanted) {
    const Buffer& from = weights.Find(tensor.name)->buffer;
    std::memcpy(tensor.buffer.data, from.data, from.bytes());
  }
  model.ReturnWeights();
}

}  // namespace

// SaveModel alternates between two names for the weights file, so it never overwrites weights that
// model.json still refers to.
void SaveModel(
    Sequential& model, const std::string& folder,
    const std::map<std::string, std::string>& metadata) {
  MakeFolder(folder);
  const std::string old = WeightsThere(folder);
  const bool takes_second = old == kWeightsFiles[0];
  ModelStructure structure{model.input_shape(), {}, kWeightsFiles[takes_second], metadata};
  for (const Layer* layer : model.layers()) structure.layers.push_back(ConfigOf(*layer));
  SaveTensors(fs::path(folder) / structure.weights, TensorsOf(model));
  ReplaceFile(fs::path(folder) / kStructureFile, ToJson(structure));
  unlink((fs::path(folder) / kWeightsFiles[!takes_second]).c_str());
}

std::unique_ptr<Sequential> LoadModel(const std::string& folder, const LoadModelOptions& options) {
  const ModelStructure structure = ReadStructure(folder);
  const std::string structure_path = fs::path(folder) / kStructureFile;
  const std::string weights_path = fs::path(folder) / structure.weights;
  LayerList layers = AboutFile(structure_path, [&] {
    return options.registry.MakeLayers(WithoutSynchronisation(structure.layers));
  });
  std::vector<const Layer*> views;
  for (const auto& layer : layers) views.push_back(layer.get());
  const std::vector<LayerShapes> shapes =
      AboutFile(structure_path, [&] { return ShapesOf(structure.input, views); });
  const TensorFile weights = LoadTensors(weights_path);
  CheckCount(shapes, weights, weights_path);
  auto model = AboutFile(structure_path, [&] {
    return std::make_unique<Sequential>(structure.input, std::move(layers), options.sequential);
  });
  AboutFile(weights_path, [&] {
    FillFrom(weights, *model);
    return 0;
  });
  return model;
}

std::map<std::string, std::string> LoadModelMetadata(const std::string& folder) {
  return ReadStructure(folder).metadata;
}

}  // namespace dtrun::models
