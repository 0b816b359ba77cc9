#ifndef DTRUN_MODELS_FORMATS_MODEL_SAVED_MODEL_H_
#define DTRUN_MODELS_FORMATS_MODEL_SAVED_MODEL_H_

#include <map>
#include <memory>
#include <string>

#include "models/layers/registry.h"
#include "models/layers/sequential.h"

namespace dtrun::models {

/// A saved model is a folder with model.json and the weights. model.json has the structure; see
/// ModelStructure. The weights are in the safetensors format, with Sequential's parameter names as
/// keys. Loading a model needs no code of the program that built it.
///
///   SaveModel(model, "fmnist");
///   std::unique_ptr<Sequential> again = LoadModel("fmnist");

/// Saves the model into `folder`, which is created if necessary. An old model is replaced
/// atomically: the new weights get a new file name, and model.json, written last, refers to it.
/// Other files of the folder stay. In a job, one rank saves. Throws Error kSystem with the path and
/// the reason.
void SaveModel(
    Sequential& model, const std::string& folder,
    const std::map<std::string, std::string>& metadata = {});

struct LoadModelOptions {
  /// The options of the network. `seed` is the seed of dropout in further training.
  SequentialOptions sequential = {};
  LayerRegistry registry = LayerRegistry::BuiltIn();  ///< add your own layers here
};

/// Throws Error with one line: the file, the value found and the value expected.
///
/// - kInvalidArgument: the folder has no model, or the model is incomplete or wrong.
/// - kSystem: a file cannot be read.
///
/// If the numbers of weights and parameters differ, LoadModel fails before it builds the network.
/// Layers with the setting "synchronized" (statistics of all ranks) are made without it. Their
/// outputs for an example stay the same.
std::unique_ptr<Sequential> LoadModel(
    const std::string& folder, const LoadModelOptions& options = {});

/// Returns the metadata that was passed to SaveModel. Throws the errors of LoadModel.
std::map<std::string, std::string> LoadModelMetadata(const std::string& folder);

}  // namespace dtrun::models

#endif
