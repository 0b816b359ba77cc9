#include "launcher/engines/executables.h"

#include <elf.h>
#include <fcntl.h>
#include <pwd.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string_view>
#include <vector>

#include "base/launch_env.h"
#include "base/text.h"
#include "launcher/engines/mpirun.h"
#include "launcher/support/host_system.h"
#include "launcher/support/quoting.h"

namespace dtrun::launcher {
namespace {

using base::Text;

// The first line that the program writes to `stream`, its stdout or stderr; "": it cannot be run.
std::string FirstLineOf(const std::string& file, const char* argument, int stream) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0)
    throw LaunchError(ExitCode::kInternal, "cannot make a pipe" + ErrorWithLimit(errno));
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  for (const int other : {STDOUT_FILENO, STDERR_FILENO})
    posix_spawn_file_actions_addopen(&actions, other, "/dev/null", O_WRONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, ends[1], stream);
  char* const argv[] = {const_cast<char*>(file.c_str()), const_cast<char*>(argument), nullptr};
  std::string home = "HOME=" + HomeFolder();
  std::vector<char*> variables = {home.data()};
  for (char** variable = environ; *variable != nullptr; ++variable)
    if (!std::string_view(*variable).starts_with("HOME=")) variables.push_back(*variable);
  variables.push_back(nullptr);
  pid_t child = -1;
  const int error = posix_spawn(&child, file.c_str(), &actions, nullptr, argv, variables.data());
  const bool started = error == 0;
  posix_spawn_file_actions_destroy(&actions);
  if (error == EAGAIN || error == ENOMEM)
    throw LaunchError(ExitCode::kInternal, "cannot start a process" + ErrorWithLimit(error));
  close(ends[1]);
  std::string output;
  char buffer[512];
  for (ssize_t got; started && (got = read(ends[0], buffer, sizeof buffer)) > 0;)
    output.append(buffer, static_cast<size_t>(got));
  close(ends[0]);
  if (started) waitpid(child, nullptr, 0);
  return output.substr(0, output.find('\n'));
}

std::filesystem::path OwnFolder() {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/exe", error).parent_path();
}

}  // namespace

std::string HomeFolder() {
  if (const auto home = base::ProcessEnv("HOME"); home && !home->empty()) return *home;
  const passwd* user = getpwuid(geteuid());
  return user == nullptr ? "/" : user->pw_dir;
}

std::string FindMpirun(const std::string& path) {
  const std::optional<std::string> mpirun = SearchPath("mpirun", path);
  if (!mpirun)
    throw LaunchError(
        ExitCode::kUnavailable,
        "mpirun was not found in PATH; install Open MPI (Debian, Ubuntu: apt-get install "
        "openmpi-bin), or start the ranks without mpirun: --launcher local on this host alone, "
        "--launcher ssh on several hosts");
  const std::string version = MpirunVersion(*mpirun);
  if (OpenMpiOf(version) == 0)
    throw LaunchError(
        ExitCode::kUnavailable, Text(
                                    ShellQuoted(*mpirun), " is version ", ShellQuoted(version),
                                    "; expected mpirun of Open MPI 4 or 5, first in PATH, or "
                                    "--launcher local (this host) or ssh"));
  // The folder is resolved: if mpirun is started as /bin/mpirun and /bin is a link, it looks for
  // Open MPI below "/". The file name is not resolved: it is often a link to a program that depends
  // on its own name.
  const std::filesystem::path file(*mpirun);
  std::error_code error;
  const auto folder = std::filesystem::canonical(file.parent_path(), error);
  return error ? *mpirun : (folder / file.filename()).string();
}

// mpirun's errors, and the loader's messages about preloaded libraries, are on stderr.
std::string MpirunVersion(const std::string& mpirun) {
  const std::string line = FirstLineOf(mpirun, "--version", STDOUT_FILENO);
  return line.empty() ? FirstLineOf(mpirun, "--version", STDERR_FILENO) : line;
}

std::string FindHelper(const std::string& name) {
  const std::filesystem::path here = OwnFolder();
  const std::filesystem::path installed = (here / "../libexec/dtrun" / name).lexically_normal();
  for (const std::filesystem::path& file : {installed, here / name})
    if (access(file.c_str(), X_OK) == 0) return file;
  throw LaunchError(
      ExitCode::kInternal, Text(
                               "the installation is incomplete: ", installed.string(),
                               " is missing; install dtrun again"));
}

// The libraries are in ../lib of dtrun, or ../../lib of a helper. Debian's packages have them
// below, in the folder of the architecture. In the build tree they are in ../runtime or
// ../../runtime.
std::vector<OwnLibrary> OwnLibraries() {
  std::vector<OwnLibrary> libraries = {
      {"libdtrun.so.0", ""},
      {"libdtrun_mpi.so", ""},
      {"libdtrun_mpich.so", ""},
      {"libdtrun_ucx.so", ""}};
  for (OwnLibrary& library : libraries)
    for (const char* folder :
         {"lib", "runtime", "lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu/dtrun"})
      for (const char* up : {"..", "../.."}) {
        const std::filesystem::path file =
            (OwnFolder() / up / folder / library.name).lexically_normal();
        if (library.file.empty() && access(file.c_str(), R_OK) == 0) library.file = file;
      }
  return libraries;
}

namespace {

using base::Text;

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

// Compares word size, byte order and processor with this program.
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

// "": the kernel knows the format, or this process may not read the file.
std::string FormatProblem(const std::string& file) {
  if (access(file.c_str(), R_OK) != 0) return "";  // it may still be executable
  const std::string start = ReadStart(file);
  if (start.starts_with("#!")) {
    const std::string interpreter = Interpreter(start);
    if (IsExecutableFile(interpreter)) return "";
    return Text("its interpreter ", ShellQuoted(interpreter), " cannot be run");
  }
  if (!IsElf(start)) return "neither a binary nor a script that begins with #!";
  return IsElfOfThisMachine(start) ? "" : "built for another kind of machine";
}

std::string FindNamed(const std::string& name, const std::string& path) {
  if (name.find('/') != std::string::npos) return name;
  if (const std::optional<std::string> found = SearchPath(name, path)) return *found;
  throw LaunchError(
      ExitCode::kNotFound,
      Text(
          ShellQuoted(name), " was not found in PATH",
          IsFile(name) ? Text("; to run the file in this folder, type ", ShellQuoted("./" + name))
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

FileProblem ProblemOfProgram(const std::string& file) {
  const auto refused = [](const std::string& why) {
    return FileProblem{ExitCode::kNotExecutable, why};
  };
  struct stat status;
  if (stat(file.c_str(), &status) != 0) {
    if (errno == EACCES) return refused("permission denied");
    return {ExitCode::kNotFound, std::strerror(errno)};
  }
  if (S_ISDIR(status.st_mode)) return refused("it is a folder");
  if (!S_ISREG(status.st_mode)) return refused("it is not a regular file");
  if (access(file.c_str(), X_OK) != 0) return refused("permission denied");
  return refused(FormatProblem(file));
}

std::string FindProgram(const std::string& name, const std::string& path) {
  const std::string file = FindNamed(name, path);
  const FileProblem problem = ProblemOfProgram(file);
  if (problem.why.empty()) return file;
  const char* const refused = problem.code == ExitCode::kNotExecutable ? "cannot run " : "";
  throw LaunchError(problem.code, Text(refused, ShellQuoted(file), ": ", problem.why));
}

}  // namespace dtrun::launcher
