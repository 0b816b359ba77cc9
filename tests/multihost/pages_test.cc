// The commands of the pages in docs/ for several hosts: the blocks of language "sh hosts". They run
// on node1.

#include <catch2/catch.hpp>
#include <filesystem>

#include "tests/multihost/rig.h"
#include "tests/support/page.h"

namespace {

using namespace dtrun::testing;

TEST_CASE("the commands of the pages for several hosts run and print the output shown there") {
  if (Skipped()) return;
  const TemporaryFolder folder;
  std::filesystem::create_symlink(
      std::filesystem::absolute("examples/sgd"), folder.path() + "/train");
  int ran = 0;
  for (const std::string& page : PagesOf("docs")) {
    for (const PageBlock& block : CommandBlocks(page)) {
      if (block.language != "sh hosts") continue;
      const std::string script =
          ScriptOf(block, folder.path(), std::filesystem::absolute("launcher"));
      const CommandResult result = Run(OnHosts({"bash", "-c", script}, {"--names", "node1,node2"}));
      INFO(block.where << "\n" << block.commands << "-- printed:\n" << result.out << result.err);
      CHECK(result.exit_code == 0);
      if (block.output) {
        INFO("-- the page shows:\n" << *block.output);
        CHECK(IsShown(*block.output, result.out));
      }
      ++ran;
    }
  }
  CHECK(ran > 4);
}

}  // namespace
