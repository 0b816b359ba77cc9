#include "tests/support/completed_line.h"

#include <filesystem>
#include <fstream>

#include "tests/support/subprocess.h"
#include "tests/support/text.h"

namespace dtrun::testing {

// Bash reads its keys from a file, as from a terminal. Ctrl-G writes the line, Ctrl-U clears it.
std::string CompletedLine(
    const std::string& folder, const std::string& setup, const std::string& line) {
  const std::string completed = folder + "/.completed", keys = folder + "/.keys";
  std::filesystem::remove(completed);
  std::ofstream(keys) << "bind -x '\"\\C-g\": printf %s \"$READLINE_LINE\" >" << completed << "'\n"
                      << setup << '\n'
                      << line << "\033*\007\025exit\n";
  Run(
      {{"sh", "-c", "exec bash --noprofile --norc -i <" + keys},
       {{"INPUTRC", "/dev/null"}, {"TERM", "dumb"}, {"HISTFILE", ""}},
       folder});
  return ReadText(completed);
}

}  // namespace dtrun::testing
