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

std::string WithoutWaits(const std::string& text, int least) {
  const std::regex wait("(?:gave up after|waiting for) ([0-9]+) s: ");
  std::string result;
  auto rest = text.begin();
  for (std::sregex_iterator match(text.begin(), text.end(), wait), end; match != end; ++match) {
    const auto& seconds = (*match)[1];
    result.append(rest, seconds.first);
    result += std::stoi(seconds.str()) >= least ? "N" : seconds.str();
    rest = seconds.second;
  }
  return result.append(rest, text.end());
}

}  // namespace dtrun::testing
