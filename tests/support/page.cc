#include "tests/support/page.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <stdexcept>

namespace dtrun::testing {
namespace {

struct Fence {
  int line;
  std::string language, text;
  bool follows;  // only blank lines since the block before
};

std::vector<Fence> Fences(const std::string& path) {
  std::ifstream stream(path);
  if (!stream) throw std::runtime_error(path + " cannot be read");
  std::vector<Fence> fences;
  bool inside = false, blank = false;
  int number = 0;
  for (std::string line; std::getline(stream, line);) {
    ++number;
    if (line.starts_with("```")) {
      if (!inside) fences.push_back({number, line.substr(3), "", blank});
      inside = !inside;
      blank = true;
    } else if (inside) {
      fences.back().text += line + "\n";
    } else {
      blank = blank && line.empty();
    }
  }
  if (inside) throw std::runtime_error(path + ": a block is not closed");
  return fences;
}

std::string Quoted(const std::string& word) { return "'" + word + "'"; }

}  // namespace

std::vector<PageBlock> CommandBlocks(const std::string& path) {
  std::vector<PageBlock> blocks;
  const std::vector<Fence> fences = Fences(path);
  for (size_t i = 0; i < fences.size(); ++i) {
    const Fence& fence = fences[i];
    if (fence.language != "sh" && !fence.language.starts_with("sh ")) continue;
    PageBlock block = {
        path + ":" + std::to_string(fence.line), fence.language, fence.text, std::nullopt};
    const bool shown = i + 1 < fences.size() && fences[i + 1].language == "text";
    if (shown && fences[i + 1].follows) block.output = fences[i + 1].text;
    blocks.push_back(std::move(block));
  }
  return blocks;
}

std::vector<std::string> PagesOf(const std::string& folder) {
  std::vector<std::string> pages;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder))
    if (entry.path().extension() == ".md") pages.push_back(entry.path());
  std::sort(pages.begin(), pages.end());
  return pages;
}

std::string ScriptOf(
    const PageBlock& block, const std::string& folder, const std::string& programs) {
  return "set -e -o pipefail; exec 2>&1; PATH=" + Quoted(programs) + ":" + Quoted(folder) +
         ":$PATH; cd " + Quoted(folder) + "\n" + block.commands;
}

// The text begins with the first piece, ends with the last piece and contains the others in order.
bool IsShown(const std::string& shown, const std::string& text) {
  constexpr char kAnything[] = "...";
  size_t at = 0, begin = 0;
  for (bool first = true;; first = false) {
    const size_t end = shown.find(kAnything, begin);
    const std::string piece = shown.substr(begin, end == std::string::npos ? end : end - begin);
    if (end == std::string::npos)
      return first ? text == piece : text.size() >= at + piece.size() && text.ends_with(piece);
    const size_t found = text.find(piece, at);
    if (found == std::string::npos || (first && found != 0)) return false;
    at = found + piece.size();
    begin = end + sizeof kAnything - 1;
  }
}

}  // namespace dtrun::testing
