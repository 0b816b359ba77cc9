#include "tests/support/text.h"

#include <fstream>
#include <iterator>
#include <regex>

namespace dtrun::testing {

std::string ReadText(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

size_t CountOf(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

std::string WithoutWaits(const std::string& text) {
  static const std::regex kWait("(gave up after|waiting for) [0-9]+ s: ");
  return std::regex_replace(text, kWait, "$1 N s: ");
}

}  // namespace dtrun::testing
