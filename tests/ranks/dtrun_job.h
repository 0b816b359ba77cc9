#ifndef DTRUN_TESTS_RANKS_DTRUN_JOB_H_
#define DTRUN_TESTS_RANKS_DTRUN_JOB_H_

#include <string>
#include <utility>
#include <vector>

#include "tests/support/subprocess.h"

namespace dtrun::testing {

inline constexpr char kDtrun[] = "launcher/dtrun";

/// Runs dtrun with `words` as its arguments. The ranks' lines have no tags.
inline CommandResult RunJob(
    const std::vector<std::string>& words,
    const std::vector<std::pair<std::string, std::string>>& environment = {}) {
  Command command{.argv = {kDtrun, "--tag", "none"}, .environment = environment};
  command.argv.insert(command.argv.end(), words.begin(), words.end());
  return Run(command);
}

}  // namespace dtrun::testing

#endif
