#include "tests/support/python.h"

#include <cstdio>
#include <filesystem>

#include "tests/support/text.h"

namespace dtrun::testing {
namespace {

constexpr char kPackages[] = "scripts/python.txt";

// The runfile is a link into the repository.
std::filesystem::path FolderOf(const std::string& name) {
  std::error_code ignored;
  const auto scripts = std::filesystem::canonical(kPackages, ignored).parent_path();
  return scripts.parent_path() / "build" / name;
}

std::filesystem::path Folder() { return FolderOf("python"); }

}  // namespace

bool PythonIsMissing() {
  const std::string wanted = ReadText(kPackages);
  if (!wanted.empty() && ReadText(Folder() / "installed.txt") == wanted) return false;
  std::printf(
      "SKIPPED: %s lacks the Python packages of scripts/python.txt; scripts/test installs them\n",
      Folder().c_str());
  return true;
}

std::string FullFolder(const std::string& name) {
  if (std::filesystem::exists(FolderOf(name) / "installed.txt")) return FolderOf(name);
  std::printf("SKIPPED: build/%s was not found; scripts/test --full installs it\n", name.c_str());
  return "";
}

CommandResult RunPython(const std::vector<std::string>& script) {
  Command command{.argv = {Folder() / "bin/python"}};
  command.argv.insert(command.argv.end(), script.begin(), script.end());
  return Run(command);
}

}  // namespace dtrun::testing
