#ifndef DTRUN_MODELS_LAYERS_REGISTRY_H_
#define DTRUN_MODELS_LAYERS_REGISTRY_H_

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "models/layers/layer.h"
#include "models/layers/settings.h"

namespace dtrun::models {

/// Makes layers from their kinds and settings. Add your own kind:
///
///   LayerRegistry registry = LayerRegistry::BuiltIn();
///   registry.Add("scale", [](const LayerSettings& settings) {
///     return std::make_unique<Scale>(settings.Number("factor"));
///   });
///
/// The `kind()` of Scale is "scale", and its `settings()` has "factor". A setting that `settings()`
/// of the made layer does not have is refused. Therefore a misspelt setting is never ignored.
class LayerRegistry {
 public:
  using Make = std::function<std::unique_ptr<Layer>(const LayerSettings& settings)>;
  /// For layers that hold other layers. They make these with `registry`.
  using MakeNested = std::function<std::unique_ptr<Layer>(
      const LayerSettings& settings, const LayerRegistry& registry)>;

  /// A registry with all layers of this library.
  static LayerRegistry BuiltIn();

  /// Throws Error kInvalidArgument if the registry already has this kind.
  void Add(const std::string& kind, Make make);
  void AddNested(const std::string& kind, MakeNested make);

  /// Throws Error kInvalidArgument: "conv2d: filters: 0, expected an integer from 1 to 65536".
  std::unique_ptr<Layer> MakeLayer(const LayerConfig& config) const;
  /// Errors also name the layer by its index: "layer 0: conv2d: ...".
  std::vector<std::unique_ptr<Layer>> MakeLayers(const std::vector<LayerConfig>& configs) const;

  /// "conv2d, dense, dropout"
  std::string kinds() const;

 private:
  std::map<std::string, MakeNested> makers_;
};

/// The kind and settings from which a LayerRegistry makes the same layer.
LayerConfig ConfigOf(const Layer& layer);
std::vector<LayerConfig> ConfigsOf(const std::vector<std::unique_ptr<Layer>>& layers);

/// "glorot_uniform"
const char* NameOf(Initializer initializer);

/// "relu", or "linear" for kNone
const char* NameOf(Activation activation);
/// Reads the setting "activation".
Activation ActivationOf(const LayerSettings& settings);

}  // namespace dtrun::models

#endif
