#include "launcher/support/quoting.h"

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstring>

#include "base/text.h"
#include "launcher/support/launch_error.h"

namespace dtrun::launcher {
namespace {

bool IsPlain(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) ||
         (c != '\0' && std::strchr("_-+./:,=@%^", c) != nullptr);
}

bool IsControl(char c) { return std::iscntrl(static_cast<unsigned char>(c)) != 0; }

std::string WithEscapes(const std::string& word) {
  std::string quoted = "$'";
  for (char c : word) {
    if (c == '\n') {
      quoted += "\\n";
    } else if (IsControl(c)) {
      char octal[5];
      std::snprintf(octal, sizeof octal, "\\%03o", static_cast<unsigned>(c) & 0xff);
      quoted += octal;
    } else {
      if (c == '\'' || c == '\\') quoted += '\\';
      quoted += c;
    }
  }
  return quoted + "'";
}

}  // namespace

std::string ShellQuoted(const std::string& word) {
  if (!word.empty() && std::all_of(word.begin(), word.end(), IsPlain)) return word;
  if (std::any_of(word.begin(), word.end(), IsControl)) return WithEscapes(word);
  std::string quoted = "'";
  for (char c : word) quoted += c == '\'' ? "'\\''" : std::string(1, c);
  return quoted + "'";
}

std::string Excerpt(const std::string& text) {
  constexpr size_t kMost = 80;
  if (text.size() <= kMost) return ShellQuoted(text);
  return base::Text(ShellQuoted(text.substr(0, kMost / 2)), "... (", text.size(), " characters)");
}

std::string ShellLine(const std::vector<std::string>& words) {
  std::vector<std::string> quoted;
  for (const std::string& word : words) quoted.push_back(ShellQuoted(word));
  return base::Join(quoted, " ");
}

std::vector<std::string> SplitWords(const std::string& line) {
  std::vector<std::string> words;
  bool in_word = false;
  char quote = '\0';
  for (size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (quote == '\0' && std::isspace(static_cast<unsigned char>(c))) {
      in_word = false;
      continue;
    }
    if (!in_word) words.emplace_back();
    in_word = true;
    if (quote == '\0' && (c == '\'' || c == '"')) {
      quote = c;
    } else if (c == quote) {
      quote = '\0';
    } else if (c == '\\' && quote != '\'' && i + 1 < line.size()) {
      words.back() += line[++i];
    } else {
      words.back() += c;
    }
  }
  if (quote != '\0') throw UsageError("a quote has no end; expected a closing quote");
  return words;
}

}  // namespace dtrun::launcher
