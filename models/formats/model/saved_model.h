#ifndef DTRUN_MODELS_FORMATS_MODEL_SAVED_MODEL_H_
#define DTRUN_MODELS_FORMATS_MODEL_SAVED_MODEL_H_

#include <map>
#include <memory>
#include <string>

#include "models/layers/registry.h"
#include "models/layers/sequential.h"

namespace dtrun::models {

/// Saved models: a folder with model.json (the structure, see ModelStructure) and the weights in
/// the safetensors format, by the names that Sequential gives its parameters. Whoever loads one
/// needs nothing of the code that has built it.
///
///   SaveModel(model, "fmnist");
///   std::unique_ptr<Sequential> again = LoadModel("fmnist");

/// Saves into the folder, which is made. A model that is there already is replaced at once, or not
/// at all: the new weights have a name of their own, and model.json, written last, says it. Other
/// files of the folder stay. In a job one rank saves. Throws Error kSystem with the path and the
/// reason.
void SaveModel(
    Sequential& model, const std::string& folder,
    const std::map<std::string, std::string>& metadata = {});

struct LoadModelOptions {
  /// How examples go through the network; its seed is that of dropout in further training.
  SequentialOptions sequential = {};
  LayerRegistry registry = LayerRegistry::BuiltIn();  ///< with your own layers
};

/// Throws Error, one line that names the file, what was found and what was expected:
/// kInvalidArgument when the folder has no model, or one that is not whole or not right, kSystem
/// when a file cannot be read. A structure that its weights do not fit is refused before the
/// network is built. Layers that were trained with the statistics of all ranks ("synchronized") are
/// made without that: what they compute of an example is the same.
std::unique_ptr<Sequential> LoadModel(
    const std::string& folder, const LoadModelOptions& options = {});

/// What was given to SaveModel. Throws as LoadModel does.
std::map<std::string, std::string> LoadModelMetadata(const std::string& folder);

}  // namespace dtrun::models

#endif
