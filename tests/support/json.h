#ifndef DTRUN_TESTS_SUPPORT_JSON_H_
#define DTRUN_TESTS_SUPPORT_JSON_H_

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <string>

#include "base/json.h"

namespace dtrun::testing {

using base::ParseJson;

/// The value in a file. Throws nlohmann::json::parse_error if the file is missing or not JSON.
nlohmann::json ReadJson(const std::string& path);

}  // namespace dtrun::testing

/// How Catch2 prints a value. Its own way is compiled anew in each test.
template <>
struct Catch::StringMaker<nlohmann::json> {
  static std::string convert(const nlohmann::json& value);
};

#endif
