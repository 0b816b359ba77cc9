#include "tests/support/text.h"

#include <algorithm>
#include <fstream>
#include <iterator>

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

// Copies the text. Behind the words that begin a wait, N replaces its seconds. Without std::regex:
// making one changes a cache of the locale that all threads share.
std::string WithoutWaits(const std::string& text, int least) {
  const std::string before[] = {"gave up after ", "waiting for "};
  std::string result;
  size_t i = 0;
  while (i < text.size()) {
    const auto words = std::find_if(std::begin(before), std::end(before), [&](const auto& b) {
      return text.compare(i, b.size(), b) == 0;
    });
    if (words == std::end(before)) {
      result += text[i++];
      continue;
    }
    const size_t first = i + words->size();
    const size_t end = std::min(text.find_first_not_of("0123456789", first), text.size());
    const std::string seconds = text.substr(first, end - first);
    const bool is_wait = !seconds.empty() && text.compare(end, 4, " s: ") == 0;
    result += *words + (is_wait && std::stoi(seconds) >= least ? "N" : seconds);
    i = end;
  }
  return result;
}

}  // namespace dtrun::testing
