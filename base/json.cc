#include "base/json.h"

namespace dtrun::base {

using Json = nlohmann::json;

Json ParseJson(std::string_view text) { return Json::parse(text); }

Json ParseJsonOrDiscard(std::string_view text) {
  return Json::parse(text, nullptr, /*allow_exceptions=*/false);
}

std::string JsonText(const Json& value, int indent) {
  return value.dump(indent, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

std::string AsciiJsonText(const Json& value) {
  return value.dump(-1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace);
}

}  // namespace dtrun::base
