// Replaces libFuzzer in builds without it: runs each target on each kept input, the files in
// corpus/TARGET.

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "tests/fuzz/refused.h"

namespace {

namespace fs = std::filesystem;

const fs::path kCorpus = "tests/fuzz/corpus";

std::vector<std::string> SortedNames(const fs::path& folder) {
  std::vector<std::string> names;
  if (!fs::is_directory(folder)) return names;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder))
    names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

bool Replay(dtrun::fuzz::Target target, const fs::path& path) {
  std::printf("%s\n", path.c_str());
  std::fflush(stdout);  // the last printed path is the input that fails
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    std::fprintf(stderr, "%s cannot be read\n", path.c_str());
    return false;
  }
  const std::string input{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  target(reinterpret_cast<const uint8_t*>(input.data()), input.size());
  return true;
}

}  // namespace

int main() {
  int passed = 0, failed = 0;
  for (const auto& [name, target] : dtrun::fuzz::Targets()) {
    const std::vector<std::string> inputs = SortedNames(kCorpus / name);
    if (inputs.empty()) {
      std::printf("FAIL  the target %s has no kept input; expected some\n", name.c_str());
      ++failed;
    }
    for (const std::string& input : inputs)
      ++(Replay(target, kCorpus / name / input) ? passed : failed);
  }
  for (const std::string& name : SortedNames(kCorpus)) {
    if (dtrun::fuzz::Targets().count(name) > 0) continue;
    std::printf("FAIL  tests/fuzz/corpus/%s belongs to no target\n", name.c_str());
    ++failed;
  }
  std::printf("%d passed, %d failed, 0 skipped\n", passed, failed);
  return failed > 0 ? 1 : 0;
}
