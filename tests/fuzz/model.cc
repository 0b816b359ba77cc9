// The structure of a saved model. An accepted structure survives writing and reading, and its
// settings can be read as layers read them.

#include "models/formats/model/model_structure.h"
#include "tests/fuzz/refused.h"

using namespace dtrun;

namespace {

// Reads settings as layers do. The names that layers read are short.
void Ask(const std::vector<models::LayerConfig>& layers) {
  for (const models::LayerConfig& layer : layers) {
    for (const auto& [name, value] : layer.settings.values()) {
      if (name.size() > 100) continue;
      const models::LayerSettings& settings = layer.settings;
      fuzz::TakesOrRefuses([&, key = name] { settings.Int(key, 1, 15); });
      fuzz::TakesOrRefuses([&, key = name] { settings.Number(key); });
      fuzz::TakesOrRefuses([&, key = name] { settings.OneOf(key, {"linear", "relu"}); });
      fuzz::TakesOrRefuses([&, key = name] { Ask(settings.Layers(key)); });
    }
  }
}

}  // namespace

FUZZ_TARGET(model) {
  fuzz::TakesOrRefuses([&] {
    const models::ModelStructure structure = models::ParseStructure(fuzz::TextOf(data, size));
    fuzz::Expect(models::ParseStructure(models::ToJson(structure)) == structure);
    Ask(structure.layers);
  });
  return 0;
}
