#ifndef DTRUN_TESTS_TORCH_TOLD_H_
#define DTRUN_TESTS_TORCH_TOLD_H_

#include <algorithm>
#include <catch2/catch.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/subprocess.h"

// Runs programs of stories (stories.h) under dtrun and checks the output of their ranks.

namespace dtrun::testing {

/// The output lines of the ranks, in rank order.
inline std::vector<std::string> Told(
    const std::string& np, const std::vector<std::string>& stories,
    const std::string& program = "tests/torch/torch_ranks") {
  std::vector<std::string> argv = {"launcher/dtrun", "--tag", "none", "-np", np, program};
  argv.insert(argv.end(), stories.begin(), stories.end());
  const CommandResult result =
      Run(Command{.argv = argv, .environment = {{"DTRUN_TIMEOUT_S", "30"}}});
  UNSCOPED_INFO(result.err);
  CHECK(result.exit_code == 0);
  std::vector<std::string> lines;
  std::istringstream out(result.out);
  for (std::string line; std::getline(out, line);) lines.push_back(line);
  std::stable_sort(lines.begin(), lines.end(), [](const std::string& a, const std::string& b) {
    return a.substr(0, 2) < b.substr(0, 2);
  });
  return lines;
}

inline void CheckStories(
    int np, const std::vector<std::string>& stories,
    const std::string& program = "tests/torch/torch_ranks") {
  std::vector<std::string> expected;
  for (int rank = 0; rank < np; ++rank) {
    for (const std::string& story : stories)
      expected.push_back(std::to_string(rank) + ": " + story + " ok");
  }
  CHECK(Told(std::to_string(np), stories, program) == expected);
}

}  // namespace dtrun::testing

#endif
