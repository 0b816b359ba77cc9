#include "base/text.h"

#include <charconv>

namespace dtrun::base {

std::vector<std::string> Split(const std::string& text, char separator) {
  std::vector<std::string> fields(1);
  for (char c : text) {
    if (c == separator) {
      fields.emplace_back();
    } else {
      fields.back() += c;
    }
  }
  return fields;
}

std::string Join(const std::vector<std::string>& parts, const std::string& separator) {
  std::string joined;
  for (const std::string& part : parts) joined += (&part == &parts.front() ? "" : separator) + part;
  return joined;
}

std::optional<int64_t> ParseInteger(const std::string& text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

namespace {

// "0, 2 and 3"
std::string List(const std::vector<std::string>& items) {
  std::string list;
  for (size_t i = 0; i < items.size(); ++i) {
    if (i > 0) list += i + 1 == items.size() ? " and " : ", ";
    list += items[i];
  }
  return list;
}

const char* Noun(size_t ranks) { return ranks == 1 ? "rank " : "ranks "; }

}  // namespace

std::string RankList(const std::vector<int>& ranks) {
  std::vector<std::string> items;
  for (const int rank : ranks) items.push_back(std::to_string(rank));
  return Noun(ranks.size()) + List(items);
}

std::string RankRanges(const std::vector<int>& ranks) {
  constexpr size_t kShortest = 3;  // of a range
  std::vector<std::string> items;
  for (size_t i = 0; i < ranks.size();) {
    size_t end = i + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    if (end - i < kShortest) end = i + 1;
    items.push_back(std::to_string(ranks[i]));
    if (end - i > 1) items.back() += "-" + std::to_string(ranks[end - 1]);
    i = end;
  }
  return Noun(ranks.size()) + List(items);
}

}  // namespace dtrun::base
