#include "launcher/program.h"

#include <elf.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <fstream>

#include "base/text.h"
#include "launcher/launch_error.h"
#include "launcher/quoting.h"

namespace dtrun::launcher {
namespace {

using base::Text;

[[noreturn]] void NotExecutable(const std::string& file, const std::string& why) {
  throw LaunchError(ExitCode::kNotExecutable, Text("cannot run ", ShellQuoted(file), ": ", why));
}

bool IsFile(const std::string& file) {
  struct stat status;
  return stat(file.c_str(), &status) == 0 && S_ISREG(status.st_mode);
}

bool IsExecutableFile(const std::string& file) {
  return IsFile(file) && access(file.c_str(), X_OK) == 0;
}

std::string ReadStart(const std::string& file) {
  std::string start(256, '\0');
  std::ifstream stream(file, std::ios::binary);
  stream.read(start.data(), static_cast<std::streamsize>(start.size()));
  start.resize(static_cast<size_t>(stream.gcount()));
  return start;
}

bool IsElf(const std::string& start) {
  return start.size() >= sizeof(Elf64_Ehdr) && start.starts_with(ELFMAG);
}

// 32 or 64 bits, byte order, processor: what this very program was built for.
bool IsElfOfThisMachine(const std::string& start) {
  const std::string own = ReadStart("/proc/self/exe");
  Elf64_Ehdr header;
  Elf64_Ehdr own_header;
  if (!IsElf(own)) return true;
  std::memcpy(&header, start.data(), sizeof header);
  std::memcpy(&own_header, own.data(), sizeof own_header);
  return header.e_ident[EI_CLASS] == own_header.e_ident[EI_CLASS] &&
         header.e_ident[EI_DATA] == own_header.e_ident[EI_DATA] &&
         header.e_machine == own_header.e_machine;
}

// "#! /bin/sh -e" -> "/bin/sh"
std::string Interpreter(const std::string& start) {
  const std::string line = start.substr(2, start.find('\n') - 2);
  const size_t first = line.find_first_not_of(" \t");
  if (first == std::string::npos) return "";
  return line.substr(first, line.find_first_of(" \t", first) - first);
}

void CheckFormat(const std::string& file) {
  if (access(file.c_str(), R_OK) != 0) return;  // it may still be run
  const std::string start = ReadStart(file);
  if (start.starts_with("#!")) {
    const std::string interpreter = Interpreter(start);
    if (!IsExecutableFile(interpreter))
      NotExecutable(file, Text("its interpreter ", ShellQuoted(interpreter), " cannot be run"));
  } else if (!IsElf(start)) {
    NotExecutable(file, "neither a binary nor a script that begins with #!");
  } else if (!IsElfOfThisMachine(start)) {
    NotExecutable(file, "built for another kind of machine");
  }
}

std::string FindNamed(const std::string& name, const std::string& path) {
  if (name.find('/') != std::string::npos) return name;
  if (const std::optional<std::string> found = SearchPath(name, path)) return *found;
  throw LaunchError(
      ExitCode::kNotFound,
      Text(
          ShellQuoted(name), " was not found in PATH",
          IsFile(name) ? Text("; for the one in this folder type ", ShellQuoted("./" + name))
                       : ""));
}

}  // namespace

std::optional<std::string> SearchPath(const std::string& name, const std::string& path) {
  if (name.empty()) return std::nullopt;
  for (const std::string& folder : base::Split(path, ':')) {
    const std::string file = (folder.empty() ? "." : folder) + "/" + name;
    if (IsExecutableFile(file)) return file;
  }
  return std::nullopt;
}

std::string FindProgram(const std::string& name, const std::string& path) {
  const std::string file = FindNamed(name, path);
  struct stat status;
  if (stat(file.c_str(), &status) != 0) {
    if (errno == EACCES) NotExecutable(file, "permission denied");
    throw LaunchError(ExitCode::kNotFound, Text(ShellQuoted(file), ": ", std::strerror(errno)));
  }
  if (S_ISDIR(status.st_mode)) NotExecutable(file, "it is a folder");
  if (!S_ISREG(status.st_mode)) NotExecutable(file, "it is no file");
  if (access(file.c_str(), X_OK) != 0) NotExecutable(file, "permission denied");
  CheckFormat(file);
  return file;
}

}  // namespace dtrun::launcher
