#ifndef DTRUN_LAUNCHER_SUPPORT_QUOTING_H_
#define DTRUN_LAUNCHER_SUPPORT_QUOTING_H_

#include <string>
#include <vector>

namespace dtrun::launcher {

/// `word` quoted for bash, on one line.
///   ./train  ->  ./train      it's  ->  'it'\''s'      line break  ->  $'\n'
std::string ShellQuoted(const std::string& word);

/// `text` quoted for a message. A long text is cut, with its length.
std::string Excerpt(const std::string& text);

/// The words, each quoted for bash, with one space between them.
std::string ShellLine(const std::vector<std::string>& words);

/// Splits `line` into words as a shell does: quotes and backslashes count, but there is no
/// expansion. Throws UsageError for an open quote.
///   "--mca btl 'self,tcp'"  ->  {"--mca", "btl", "self,tcp"}
std::vector<std::string> SplitWords(const std::string& line);

}  // namespace dtrun::launcher

#endif
