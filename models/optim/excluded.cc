#include "models/optim/excluded.h"

#include <algorithm>

namespace dtrun::models {

bool EndsWithOneOf(const std::string& name, const LastWords& words) {
  const size_t before = name.find_last_of("./");
  const std::string last = before == std::string::npos ? name : name.substr(before + 1);
  return std::find(words.begin(), words.end(), last) != words.end();
}

}  // namespace dtrun::models
