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

/// What a layer was made with, by Keras's names: {"filters": 32, "kernel_size": 3, "activation":
/// "relu"}. A layer that holds others has lists of them: {"main": [...], "shortcut": [...]}.
///
/// The functions that read throw Error kInvalidArgument, one line with the name, what was found and
/// what was expected:
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
  /// From `least` to `most`.
  int Int(const std::string& name, int least, int most) const;
  double Number(const std::string& name) const;
  const std::string& Text(const std::string& name) const;
  /// One of `names`.
  const std::string& OneOf(const std::string& name, std::initializer_list<const char*> names) const;
  const std::vector<LayerConfig>& Layers(const std::string& name) const;

  const std::map<std::string, Value>& values() const { return values_; }
  bool operator==(const LayerSettings&) const = default;

 private:
  const Value& Find(const std::string& name, const std::string& expected) const;

  std::map<std::string, Value> values_;
};

/// A layer as it is written down.
struct LayerConfig {
  std::string kind;
  LayerSettings settings;

  bool operator==(const LayerConfig&) const = default;
};

}  // namespace dtrun::models

#endif
