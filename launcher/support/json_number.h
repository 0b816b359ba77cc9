#ifndef DTRUN_LAUNCHER_SUPPORT_JSON_NUMBER_H_
#define DTRUN_LAUNCHER_SUPPORT_JSON_NUMBER_H_

#include <cstdint>
#include <nlohmann/json.hpp>

#include "base/text.h"
#include "launcher/support/launch_error.h"

namespace dtrun::launcher {

/// A whole number in [least, most] from a JSON object that an agent has sent. Other values are
/// refused, because their conversion is undefined. Throws LaunchError kInternal, or json::exception
/// for a missing key.
inline int64_t WholeNumber(
    const nlohmann::json& object, const char* key, int64_t least, int64_t most) {
  const nlohmann::json& value = object.at(key);
  const auto refuse = [&](const std::string& what) {
    throw LaunchError(
        ExitCode::kInternal, base::Text("invalid message from an agent: ", key, " is ", what));
  };
  if (!value.is_number_integer()) refuse("no whole number");
  const auto number = value.get<int64_t>();
  if (number < least || number > most) refuse(base::Text(number));
  return number;
}

}  // namespace dtrun::launcher

#endif
