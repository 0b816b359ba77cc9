// --mpi-args is split as a shell does, and words are quoted for a shell. Splitting undoes quoting.

#include <cctype>

#include "launcher/support/quoting.h"
#include "tests/fuzz/refused.h"

using namespace dtrun;

namespace {

bool IsControl(char c) { return std::iscntrl(static_cast<unsigned char>(c)) != 0; }

// Words with control characters are quoted in bash's own syntax $'...', which SplitWords does not
// read.
bool IsOnlyBashs(const std::string& word) {
  return std::any_of(word.begin(), word.end(), IsControl);
}

// Reads $'it\'s\n\001' as bash does.
std::string UnquotedByBash(const std::string& quoted) {
  fuzz::Expect(quoted.size() >= 3 && quoted.substr(0, 2) == "$'" && quoted.back() == '\'');
  std::string word;
  for (size_t i = 2; i + 1 < quoted.size(); ++i) {
    fuzz::Expect(quoted[i] != '\'' && !IsControl(quoted[i]));
    if (quoted[i] != '\\') {
      word += quoted[i];
    } else if (quoted[++i] == 'n') {
      word += '\n';
    } else if (quoted[i] == '\'' || quoted[i] == '\\') {
      word += quoted[i];
    } else {
      fuzz::Expect(i + 3 < quoted.size());
      word += static_cast<char>(std::stoi(quoted.substr(i, 3), nullptr, 8));
      i += 2;
    }
  }
  return word;
}

void CheckQuoted(const std::string& word) {
  const std::string quoted = launcher::ShellQuoted(word);
  fuzz::Expect(
      IsOnlyBashs(word) ? UnquotedByBash(quoted) == word
                        : launcher::SplitWords(quoted) == std::vector<std::string>{word});
}

}  // namespace

FUZZ_TARGET(words) {
  const std::string text = fuzz::TextOf(data, size);
  CheckQuoted(text);
  fuzz::TakesOrRefuses([&] {
    const std::vector<std::string> words = launcher::SplitWords(text);
    if (std::any_of(words.begin(), words.end(), IsOnlyBashs)) return;
    fuzz::Expect(launcher::SplitWords(launcher::ShellLine(words)) == words);
  });
  return 0;
}
