#ifndef DTRUN_TESTS_SUPPORT_PAGE_H_
#define DTRUN_TESTS_SUPPORT_PAGE_H_

#include <optional>
#include <string>
#include <vector>

namespace dtrun::testing {

/// A block of commands on a Markdown page. The output is the next block of the page, if its
/// language is text and only blank lines lie between.
struct PageBlock {
  std::string where;     ///< "docs/guides/slurm.md:12"
  std::string language;  ///< the words after the fence: "sh", "sh hosts"
  std::string commands;
  std::optional<std::string> output;
};

/// The blocks of the page `path` with the language "sh" or "sh ...", in order. Throws
/// std::runtime_error if the file cannot be read or a block is not closed.
std::vector<PageBlock> CommandBlocks(const std::string& path);

/// The Markdown files below a folder, sorted.
std::vector<std::string> PagesOf(const std::string& folder);

/// A bash script that runs the commands in `folder`, with stderr on stdout and the folder
/// `programs` first in PATH. The script ends at the first command that fails.
std::string ScriptOf(
    const PageBlock& block, const std::string& folder, const std::string& programs);

/// Whether `text` matches the output that a page shows. A "..." in `shown` matches any text.
bool IsShown(const std::string& shown, const std::string& text);

}  // namespace dtrun::testing

#endif
