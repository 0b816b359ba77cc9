#include "tests/support/json.h"

#include "tests/support/text.h"

namespace dtrun::testing {

nlohmann::json ReadJson(const std::string& path) { return ParseJson(ReadText(path)); }

}  // namespace dtrun::testing

std::string Catch::StringMaker<nlohmann::json>::convert(const nlohmann::json& value) {
  return dtrun::base::JsonText(value, 1);
}
