#ifndef DTRUN_LAUNCHER_SUPPORT_QUOTING_H_
#define DTRUN_LAUNCHER_SUPPORT_QUOTING_H_

#include <string>
#include <vector>

namespace dtrun::launcher {

/// `word` as bash reads it back, on one line.
///   ./train  ->  ./train      it's  ->  'it'\''s'      line break  ->  $'\n'
std::string ShellQuoted(const std::string& word);

/// `text` quoted for a message, its middle left out when it is long.
std::string Excerpt(const std::string& text);

/// The words, quoted, with one space between them.
std::string ShellLine(const std::vector<std::string>& words);

/// The words of `line`, divided as a shell does it: quotes and backslashes count, nothing is
/// expanded. Throws UsageError when a quote stays open.
///   "--mca btl 'self,tcp'"  ->  {"--mca", "btl", "self,tcp"}
std::vector<std::string> SplitWords(const std::string& line);

}  // namespace dtrun::launcher

#endif
