#ifndef DTRUN_MODELS_LAYERS_SETTINGS_H_
#define DTRUN_MODELS_LAYERS_SETTINGS_H_

#include <cstdint>
#include <initializer_list>
#include <map>
#include <string>
#include <variant>
#include <vector>

namespace dtrun::models {

struct LayerConfig;

/// The settings of a layer, with Keras's names: {"filters": 32, "kernel_size": 3, "activation":
/// "relu"}. A layer that holds other layers has lists of them: {"main": [...], "shortcut": [...]}.
///
/// If a setting is missing or has another type or range, the reading functions throw Error
/// kInvalidArgument. The text is one line with the name, the value found and the value expected:
///   pool_size: 0, expected an integer from 1 to 15
class LayerSettings {
 public:
  using Value = std::variant<bool, int64_t, double, std::string, std::vector<LayerConfig>>;

  LayerSettings& Set(const std::string& name, bool value);
  LayerSettings& Set(const std::string& name, int value);
  LayerSettings& Set(const std::string& name, double value);
  LayerSettings& Set(const std::string& name, const std::string& value);
  LayerSettings& Set(const std::string& name, const char* value);
  LayerSettings& Set(const std::string& name, std::vector<LayerConfig> value);
  LayerSettings& Set(const std::string& name, Value value);

  bool Has(const std::string& name) const;
  bool Flag(const std::string& name) const;
  /// An integer from `least` to `most`.
  int Int(const std::string& name, int least, int most) const;
  double Number(const std::string& name) const;
  const std::string& Text(const std::string& name) const;
  /// A text that is one of `names`.
  const std::string& OneOf(const std::string& name, std::initializer_list<const char*> names) const;
  const std::vector<LayerConfig>& Layers(const std::string& name) const;

  const std::map<std::string, Value>& values() const { return values_; }
  bool operator==(const LayerSettings&) const = default;

 private:
  const Value& Find(const std::string& name, const std::string& expected) const;

  std::map<std::string, Value> values_;
};

/// The kind and settings of a layer, as in a file.
struct LayerConfig {
  std::string kind;
  LayerSettings settings;

  bool operator==(const LayerConfig&) const = default;
};

}  // namespace dtrun::models

#endif
