// Runs the commands of docs/guides/gpu-training.md on the simulated GPU.

#include <catch2/catch.hpp>
#include <filesystem>
#include <string>

#include "tests/support/page.h"
#include "tests/support/subprocess.h"

namespace dtrun::testing {
namespace {

TEST_CASE("the commands of the GPU training page run and print the shown output") {
  const TemporaryFolder folder;
  int ran = 0;
  for (const PageBlock& block : CommandBlocks("docs/guides/gpu-training.md")) {
    if (block.language != "sh gpu") continue;
    Command command = {{"bash", "-c", ScriptOf(block, folder.path(), "models")}};
    // The commands run in another folder, so these paths are absolute.
    command.environment = {
        {"LD_LIBRARY_PATH", std::filesystem::absolute("tests/gpu_simulator")},
        {"PATH", std::filesystem::absolute("models").string() + ":/usr/bin:/bin"}};
    const CommandResult result = Run(command);
    INFO(block.where << "\n" << block.commands << "-- printed:\n" << result.out);
    CHECK(result.exit_code == 0);
    if (block.output) CHECK(IsShown(*block.output, result.out));
    ++ran;
  }
  CHECK(ran == 1);
}

}  // namespace
}  // namespace dtrun::testing
