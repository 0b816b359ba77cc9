#ifndef DTRUN_TESTS_SUPPORT_COMPLETED_LINE_H_
#define DTRUN_TESTS_SUPPORT_COMPLETED_LINE_H_

#include <string>

namespace dtrun::testing {

/// The line that bash makes of `line` in `folder` if the key Alt-* inserts all completions,
/// each with a space behind it. Bash runs the line `setup` first. Writes files into the folder.
///
///   CompletedLine(folder, "source dtrun.bash", "dtrun --print")
///     ->  "dtrun --print-config --print-env "
std::string CompletedLine(
    const std::string& folder, const std::string& setup, const std::string& line);

}  // namespace dtrun::testing

#endif
