#include "launcher/closest.h"

#include <algorithm>
#include <numeric>

namespace dtrun::launcher {
namespace {

// How many letters differ.
int EditDistance(const std::string& a, const std::string& b) {
  std::vector<int> row(b.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (size_t i = 0; i < a.size(); ++i) {
    int diagonal = row[0]++;
    for (size_t j = 0; j < b.size(); ++j) {
      const int replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, diagonal + 1});
    }
  }
  return row.back();
}

}  // namespace

std::string ClosestTo(const std::string& word, const std::vector<std::string>& known) {
  constexpr size_t kMaxWord = 100;
  std::string closest;
  int distance = 3;
  for (const std::string& candidate : known) {
    if (word.size() > kMaxWord || EditDistance(word, candidate) >= distance) continue;
    distance = EditDistance(word, candidate);
    closest = candidate;
  }
  return closest;
}

}  // namespace dtrun::launcher
