// `ld.so --list FILE` maps the file and its libraries, prints the path of each library and ends.
// None of their code runs. A file may name its own loader, and that loader would run, so
// MissingLibraries uses the loader of this program.

#include "launcher/doctor/host_facts.h"

#include <elf.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>

#include "base/text.h"
#include "launcher/doctor/child.h"

namespace dtrun::launcher {
namespace {

constexpr std::chrono::seconds kPatience{10};

template <typename T>
bool ReadAt(std::ifstream& file, uint64_t offset, T& value) {
  file.seekg(static_cast<std::streamoff>(offset));
  return static_cast<bool>(file.read(reinterpret_cast<char*>(&value), sizeof value));
}

struct Dynamic {
  bool is_dynamic = false;
  std::string loader = {};  // "": the file is a library
};

// Reads a 64-bit ELF file; nullopt for any other file.
std::optional<Dynamic> DynamicOf(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  Elf64_Ehdr header;
  if (!ReadAt(file, 0, header) || std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 ||
      header.e_ident[EI_CLASS] != ELFCLASS64)
    return std::nullopt;
  Dynamic dynamic;
  for (int i = 0; i < header.e_phnum; ++i) {
    Elf64_Phdr segment;
    if (!ReadAt(file, header.e_phoff + static_cast<uint64_t>(i) * sizeof segment, segment))
      return std::nullopt;
    if (segment.p_type == PT_DYNAMIC) dynamic.is_dynamic = true;
    if (segment.p_type != PT_INTERP || segment.p_filesz == 0 || segment.p_filesz > 4096) continue;
    dynamic.loader.resize(segment.p_filesz);
    file.seekg(static_cast<std::streamoff>(segment.p_offset));
    if (!file.read(dynamic.loader.data(), static_cast<std::streamsize>(dynamic.loader.size())))
      return std::nullopt;
    dynamic.loader.resize(std::strlen(dynamic.loader.c_str()));
  }
  return dynamic;
}

void AddOnce(std::vector<std::string>& names, const std::string& name) {
  if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
}

// "/bin/x: /lib/libm.so.6: version `GLIBC_9' not found (required by /bin/x)"
std::optional<std::string> MissingVersion(const std::string& line) {
  const size_t version = line.find("version `"), end = line.find("' not found");
  if (version == std::string::npos || end == std::string::npos || end < version)
    return std::nullopt;
  const size_t library_end = line.rfind(": ", version);
  if (library_end == std::string::npos) return std::nullopt;
  const size_t slash = line.rfind('/', library_end);
  const size_t begin = slash == std::string::npos ? 0 : slash + 1;
  return base::Text(
      line.substr(begin, library_end - begin), " with ",
      line.substr(version + 9, end - version - 9));
}

}  // namespace

std::vector<std::string> MissingIn(const std::string& listing) {
  constexpr char kFailure[] = "error while loading shared libraries: ";
  std::vector<std::string> missing;
  for (const std::string& line : base::Split(listing, '\n')) {
    const size_t arrow = line.find(" => not found");
    const size_t failure = line.find(kFailure);
    if (arrow != std::string::npos) {
      const size_t begin = line.find_first_not_of(" \t");
      AddOnce(missing, line.substr(begin, arrow - begin));
    } else if (const auto version = MissingVersion(line)) {
      AddOnce(missing, *version);
    } else if (failure != std::string::npos) {
      const size_t begin = failure + sizeof kFailure - 1;
      AddOnce(missing, line.substr(begin, line.find(':', begin) - begin));
    }
  }
  return missing;
}

std::vector<std::string> MissingLibraries(
    const std::string& file, const std::string& library_path) {
  const std::optional<Dynamic> own = DynamicOf("/proc/self/exe"), asked = DynamicOf(file);
  if (!own || own->loader.empty() || !asked || !asked->is_dynamic) return {};
  // This loader cannot judge a file that was built for another C library.
  if (!asked->loader.empty() && asked->loader != own->loader) return {};
  std::vector<std::pair<std::string, std::string>> variables = {{"LC_ALL", "C"}};
  if (!library_path.empty()) variables.emplace_back("LD_LIBRARY_PATH", library_path);
  std::string path = file.find('/') == std::string::npos ? "./" + file : file;
  // Where a program is started through a link, $ORIGIN is the folder of the file behind the link.
  std::error_code failed;
  if (const auto target = std::filesystem::canonical(path, failed);
      !asked->loader.empty() && !failed)
    path = target;
  const Said said =
      RunToEnd({own->loader, "--list", path}, Child::Clock::now() + kPatience, variables);
  return MissingIn(said.out + said.err);
}

}  // namespace dtrun::launcher
