// The commands of the pages in docs/ work, and print the output shown there.
//
// The language of a block says where the block can run:
//   sh            anywhere; this test runs it
//   sh hosts      on node1 of the hosts node1 and node2; tests/multihost runs it
//   sh slurm      in a Slurm allocation; this test sets the variables of Slurm
//   sh gpu        on a machine with a GPU; tests/models/gpu runs it on the simulated GPU
//   sh elsewhere  only with Slurm, on a cluster or on an exclusive machine; no test runs it
//
// Other tests run the commands of two pages. tests/consumers runs those of
// docs/guides/embedding.md, about an installed dtrun. tests/scripts/package_test.sh runs those of
// docs/guides/package.md, about an archive.

#include <array>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>

#include "base/text.h"
#include "launcher/support/launch_error.h"
#include "tests/launcher/dtrun/process_test.h"
#include "tests/support/page.h"
#include "tests/support/text.h"

namespace dtrun::testing {
namespace {

// Pages whose commands are run by tests/consumers, tests/scripts and tests/python.
const std::set<std::string> kElsewhere = {"embedding.md", "package.md", "python.md"};

// Creates the programs that the pages use: trainers, one with checkpoints, and `stuck`, in which
// rank 1 never arrives.
void PutPrograms(const TemporaryFolder& folder) {
  namespace fs = std::filesystem;
  fs::create_symlink(fs::absolute("examples/sgd"), folder.path() + "/train");
  fs::create_symlink(fs::absolute("examples/checkpoint"), folder.path() + "/checkpoint");
  fs::create_symlink(fs::absolute("examples/elastic"), folder.path() + "/elastic");
  fs::create_symlink(fs::absolute("models/cnn_fmnist"), folder.path() + "/cnn_fmnist");
  folder.Write(
      "stuck", "#!/bin/sh\nexec '" + fs::absolute("tests/ranks/in_vain").string() + "' caught\n",
      0755);
}

std::vector<PageBlock> AllBlocks() {
  std::vector<PageBlock> blocks;
  for (const std::string& page : PagesOf("docs"))
    if (!kElsewhere.contains(std::filesystem::path(page).filename()))
      for (PageBlock& block : CommandBlocks(page)) blocks.push_back(std::move(block));
  return blocks;
}

void Check(const PageBlock& block, const TemporaryFolder& folder) {
  const std::string programs = std::filesystem::path(DtrunTest::Dtrun()).parent_path();
  Command command = {{"bash", "-c", ScriptOf(block, folder.path(), programs)}};
  command.timeout = std::chrono::minutes(5);  // some blocks train three times
  if (block.language == "sh slurm")
    command.environment = {
        {"SLURM_JOB_NODELIST", "node[01-02]"}, {"SLURM_TASKS_PER_NODE", "2(x2)"}};
  const CommandResult result = Run(command);
  INFO(block.where << "\n" << block.commands << "-- printed:\n" << result.out);
  CHECK(result.exit_code == 0);
  if (block.output) {
    INFO("-- the page shows:\n" << *block.output);
    CHECK(IsShown(*block.output, result.out));
  }
}

TEST_CASE("the commands of the pages run and print the output shown there") {
  int ran = 0;
  std::string page;
  std::optional<TemporaryFolder> folder;
  for (const PageBlock& block : AllBlocks()) {
    if (block.language != "sh" && block.language != "sh slurm") continue;
    // The commands of one page share a folder.
    const std::string here = block.where.substr(0, block.where.find(':'));
    if (here != page) {
      folder.emplace();
      PutPrograms(*folder);
      page = here;
    }
    Check(block, *folder);
    ++ran;
  }
  CHECK(ran > 10);
}

TEST_CASE("the code on a page is part of the page's example") {
  const auto& [name, source, count] = GENERATE(table<const char*, const char*, int>(
      {{"checkpoints", "checkpoint", 4}, {"elastic", "elastic", 1}}));
  const std::string page = ReadText(base::Text("docs/guides/", name, ".md"));
  const std::string example = ReadText(base::Text("examples/", source, ".cc"));
  const std::string begin = "```cpp\n", end = "```\n";
  int blocks = 0;
  for (size_t at = page.find(begin); at != std::string::npos; at = page.find(begin, at)) {
    at += begin.size();
    const std::string block = page.substr(at, page.find(end, at) - at);
    INFO(block);
    CHECK(example.find(block) != std::string::npos);
    ++blocks;
  }
  CHECK(blocks == count);
}

TEST_CASE("every command block says where it runs") {
  const std::set<std::string> known = {"sh", "sh hosts", "sh slurm", "sh gpu", "sh elsewhere"};
  for (const PageBlock& block : AllBlocks()) {
    CAPTURE(block.where, block.language);
    CHECK(known.contains(block.language));
  }
}

TEST_CASE("a block is read with its output and dots match any text") {
  const TemporaryFolder folder;
  const std::string path = folder.Write(
      "page.md",
      "```sh\none\n```\n\n```text\na 1\n```\ntext\n```text\nb\n```\n```sh hosts\ntwo\n```\n");
  const std::vector<PageBlock> blocks = CommandBlocks(path);
  REQUIRE(blocks.size() == 2);
  CHECK(blocks[0].commands == "one\n");
  CHECK(blocks[0].output == "a 1\n");
  CHECK(blocks[1].where == path + ":12");
  CHECK(blocks[1].language == "sh hosts");
  CHECK_FALSE(blocks[1].output);
  CHECK_THROWS(CommandBlocks(folder.Write("open.md", "```sh\none\n")));

  CHECK(IsShown("a\nb\n", "a\nb\n"));
  CHECK_FALSE(IsShown("a\n", "a\nb\n"));
  CHECK(IsShown("a...c\n", "a, b and c\n"));
  CHECK(IsShown("...c\n...", "b c\nd\n"));
  CHECK_FALSE(IsShown("a...c\n", "b, a and c\n"));
  CHECK_FALSE(IsShown("ab...bc", "abc"));
}

// "| 126, 127 | ..." -> "126, 127"
std::vector<std::string> CodesOf(const std::string& page) {
  std::ifstream stream(page);
  std::vector<std::string> codes;
  bool here = false;
  for (std::string line; std::getline(stream, line);) {
    if (line.starts_with("| code |")) here = true;
    if (here && !line.starts_with("|")) break;
    if (here) codes.push_back(base::Split(line, '|')[1]);
  }
  return codes;
}

TEST_CASE("the exit code page lists every code") {
  using launcher::ExitCode;
  const auto text = [](ExitCode code) { return std::to_string(static_cast<int>(code)); };
  const std::vector<std::string> dtruns = {
      text(ExitCode::kSuccess),
      text(ExitCode::kUsage),
      "65",  // those of cnn_fmnist
      "66",
      text(ExitCode::kUnavailable),
      text(ExitCode::kInternal),
      text(ExitCode::kNoResult),
      text(ExitCode::kPreempted),
      text(ExitCode::kLeftEarly),
      text(ExitCode::kTimeout),
      text(ExitCode::kNotExecutable) + ", " + text(ExitCode::kNotFound),
      "128 + n",
      "129, 130, 131, 143",
      "any other"};
  std::vector<std::string> listed;
  for (const std::string& codes : CodesOf("docs/reference/exit-codes.md"))
    if (codes.find("---") == std::string::npos && codes != " code ")
      listed.push_back(codes.substr(1, codes.size() - 2));
  CHECK(listed == dtruns);
}

}  // namespace
}  // namespace dtrun::testing
