#ifndef DTRUN_MODELS_LAYERS_REGISTRY_H_
#define DTRUN_MODELS_LAYERS_REGISTRY_H_

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "models/layers/layer.h"
#include "models/layers/settings.h"
#include "models/layers/window.h"

namespace dtrun::models {

/// The kinds of layers that can be made from what is written down about them. Add your own:
///
///   LayerRegistry registry = LayerRegistry::BuiltIn();
///   registry.Add("scale", [](const LayerSettings& settings) {
///     return std::make_unique<Scale>(settings.Number("factor"));
///   });
///
/// whose `kind()` is "scale" and whose `settings()` has a "factor". A setting that the made layer
/// does not have itself is refused, so that a misspelt one is never ignored.
class LayerRegistry {
 public:
  using Make = std::function<std::unique_ptr<Layer>(const LayerSettings& settings)>;
  /// For layers that hold others, which they make by `registry`.
  using MakeNested = std::function<std::unique_ptr<Layer>(
      const LayerSettings& settings, const LayerRegistry& registry)>;

  /// All layers of this library.
  static LayerRegistry BuiltIn();

  /// Throws Error kInvalidArgument when there is such a kind already.
  void Add(const std::string& kind, Make make);
  void AddNested(const std::string& kind, MakeNested make);

  /// Throws Error kInvalidArgument: "conv2d: filters: 0, expected an integer from 1 to 65536".
  std::unique_ptr<Layer> MakeLayer(const LayerConfig& config) const;
  /// Names the layer by its index as well: "layer 0: conv2d: ...".
  std::vector<std::unique_ptr<Layer>> MakeLayers(const std::vector<LayerConfig>& configs) const;

  /// "conv2d, dense, dropout"
  std::string kinds() const;

 private:
  std::map<std::string, MakeNested> makers_;
};

/// What makes the same layer again.
LayerConfig ConfigOf(const Layer& layer);
std::vector<LayerConfig> ConfigsOf(const std::vector<std::unique_ptr<Layer>>& layers);

/// "glorot_uniform"
const char* NameOf(Initializer initializer);

/// "relu"; "linear" for none
const char* NameOf(Activation activation);
/// The setting "activation".
Activation ActivationOf(const LayerSettings& settings);

}  // namespace dtrun::models

#endif
