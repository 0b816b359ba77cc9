#ifndef DTRUN_TESTS_SUPPORT_PAGE_H_
#define DTRUN_TESTS_SUPPORT_PAGE_H_

#include <optional>
#include <string>
#include <vector>

namespace dtrun::testing {

/// A block of commands of a page in Markdown, and what the page shows of their output: the ```text
/// block that follows, with nothing but a blank line between them.
struct PageBlock {
  std::string where;     ///< "docs/guides/slurm.md:12"
  std::string language;  ///< the words after the fence: "sh", "sh hosts"
  std::string commands;
  std::optional<std::string> output;
};

/// The blocks of the file `path` whose language is "sh" or begins with "sh ", in their order.
/// Throws std::runtime_error when it cannot be read or a block is not closed.
std::vector<PageBlock> CommandBlocks(const std::string& path);

/// The Markdown files of a folder, sorted.
std::vector<std::string> PagesOf(const std::string& folder);

/// A script for bash that runs the commands in `folder` as a reader would, with stderr on stdout
/// and `programs`, a folder, first in PATH. It ends at the first command that fails.
std::string ScriptOf(
    const PageBlock& block, const std::string& folder, const std::string& programs);

/// Whether `text` is what the page shows, where "..." stands for anything.
bool IsShown(const std::string& shown, const std::string& text);

}  // namespace dtrun::testing

#endif
