#include "launcher/shared_libraries.h"

#include <elf.h>
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>

namespace dtrun::launcher {
namespace {

constexpr size_t kStart = 64 << 10;     // linkers put both headers and the loader's name first
constexpr int kLoaderCannotLoad = 127;  // of glibc

// A header at `offset`, if all of it is there.
template <typename Header>
bool ReadHeader(const std::string& text, uint64_t offset, Header& header) {
  if (offset > text.size() || text.size() - offset < sizeof header) return false;
  std::memcpy(&header, text.data() + offset, sizeof header);
  return true;
}

// The exit code of `argv`, which neither reads nor shows anything; -1: a signal, or not started.
int ExitCodeInSilence(char* const* argv) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  for (const int file : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    posix_spawn_file_actions_addopen(&actions, file, "/dev/null", O_RDWR, 0);
  pid_t child = -1;
  const int error = posix_spawn(&child, argv[0], &actions, nullptr, argv, environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return -1;
  int status = 0;
  while (waitpid(child, &status, 0) < 0)
    if (errno != EINTR) return -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

}  // namespace

std::string LoaderOf(const std::string& start) {
  Elf64_Ehdr file;
  if (!start.starts_with(ELFMAG) || !ReadHeader(start, 0, file)) return "";
  if (file.e_ident[EI_CLASS] != ELFCLASS64 || file.e_phentsize != sizeof(Elf64_Phdr)) return "";
  for (uint64_t i = 0; i < file.e_phnum; ++i) {
    Elf64_Phdr segment;
    if (file.e_phoff > start.size()) return "";
    if (!ReadHeader(start, file.e_phoff + i * sizeof segment, segment)) return "";
    if (segment.p_type != PT_INTERP) continue;
    if (segment.p_offset > start.size() || segment.p_filesz > start.size() - segment.p_offset)
      return "";
    const std::string name = start.substr(segment.p_offset, segment.p_filesz);
    return name.substr(0, name.find('\0'));
  }
  return "";
}

bool LacksSharedLibrary(const std::string& file) {
  std::string start(kStart, '\0');
  std::ifstream stream(file, std::ios::binary);
  stream.read(start.data(), static_cast<std::streamsize>(start.size()));
  start.resize(static_cast<size_t>(stream.gcount()));
  std::string loader = LoaderOf(start), list = "--list", program = file;
  if (loader.empty()) return false;
  char* const argv[] = {loader.data(), list.data(), program.data(), nullptr};
  return ExitCodeInSilence(argv) == kLoaderCannotLoad;
}

}  // namespace dtrun::launcher
