#ifndef DTRUN_TESTS_LAUNCHER_DTRUN_PROCESS_TEST_H_
#define DTRUN_TESTS_LAUNCHER_DTRUN_PROCESS_TEST_H_

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/subprocess.h"

namespace dtrun::testing {

using Words = std::vector<std::string>;

/// Runs dtrun with its own temporary folder, so that a test sees the files that dtrun leaves there.
struct DtrunTest {
  TemporaryFolder temp = {};
  std::vector<std::pair<std::string, std::string>> environment = {};
  std::string folder = {};
  std::string launcher = "mpirun";

  static std::string Dtrun() { return std::filesystem::absolute(std::getenv("DTRUN")); }

  Command Line(const Words& arguments) const {
    Command command = {{Dtrun()}, {{"TMPDIR", temp.path()}}, folder};
    // Only the tests of tags expect tagged output.
    if (std::find(arguments.begin(), arguments.end(), "--tag") == arguments.end())
      command.argv.insert(command.argv.end(), {"--tag", "none"});
    if (launcher != "mpirun") command.argv.insert(command.argv.end(), {"--launcher", launcher});
    command.argv.insert(command.argv.end(), arguments.begin(), arguments.end());
    command.environment.insert(command.environment.end(), environment.begin(), environment.end());
    return command;
  }

  CommandResult Run(const Words& arguments) const { return testing::Run(Line(arguments)); }

  /// Runs `script` as the program of all ranks.
  CommandResult RunScript(int ranks, const std::string& script) const {
    return Run({"-np", std::to_string(ranks), "sh", "-c", script});
  }
};

/// Whether this process may give a process another host name (unshare -u).
inline bool CanRename() { return Run({{"unshare", "-u", "true"}}).exit_code == 0; }

/// Whether `condition` becomes true within 20 s.
template <typename Condition>
bool Soon(const Condition& condition) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!condition() && std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return condition();
}

inline long LineCount(const std::string& text) {
  return std::count(text.begin(), text.end(), '\n');
}

}  // namespace dtrun::testing

#endif
