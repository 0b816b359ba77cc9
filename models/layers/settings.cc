#include "models/layers/settings.h"

#include <dtrun/error.h>

#include <algorithm>

#include "models/text.h"

namespace dtrun::models {
namespace {

// As JSON has it, shortened.
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

}  // namespace dtrun::models
