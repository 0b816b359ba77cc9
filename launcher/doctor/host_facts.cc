// `ld.so --list FILE` maps the file and its libraries, prints the path of each library and ends.
// None of their code runs. A file may name its own loader, and that loader would run, so
// LibraryList uses the loader of this program.
//
// A child gets a socket as its stdin. This process polls the child's output and end, so no call
// waits longer than until its deadline.

#include "launcher/doctor/host_facts.h"

#include <elf.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/text.h"
#include "launcher/support/environment.h"
#include "launcher/support/launch_error.h"

namespace dtrun::launcher {
namespace {

using base::Text;

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
  return Text(
      line.substr(begin, library_end - begin), " with ",
      line.substr(version + 9, end - version - 9));
}

}  // namespace

std::vector<std::string> MissingIn(const std::string& list) {
  constexpr char kFailure[] = "error while loading shared libraries: ";
  std::vector<std::string> missing;
  for (const std::string& line : base::Split(list, '\n')) {
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

std::vector<std::string> MpiIn(const std::string& list) {
  std::vector<std::string> found;
  for (const std::string& line : base::Split(list, '\n')) {
    const size_t begin = line.find_first_not_of(" \t");
    const size_t end = line.find(' ', begin);
    if (begin == std::string::npos || end == std::string::npos) continue;
    const std::string name = line.substr(begin, end - begin);
    if (name.starts_with("libmpi.so.") || name.starts_with("libmpich.so.")) AddOnce(found, name);
  }
  return found;
}

std::string LibraryList(const std::string& file, const std::string& library_path) {
  const std::optional<Dynamic> own = DynamicOf("/proc/self/exe"), asked = DynamicOf(file);
  if (!own || own->loader.empty() || !asked || !asked->is_dynamic) return "";
  // This loader cannot judge a file that was built for another C library.
  if (!asked->loader.empty() && asked->loader != own->loader) return "";
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
  return said.out + said.err;
}

// ---- Child processes ----------------------------------------------------------------------------

namespace {

constexpr size_t kMostLine = 1 << 20, kMostComplaint = 4096;

int MillisecondsUntil(Child::Clock::time_point deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Child::Clock::now());
  return static_cast<int>(std::clamp<int64_t>(left.count(), 0, 3'600'000));
}

std::vector<std::string> Environment(
    const std::vector<std::pair<std::string, std::string>>& variables) {
  std::vector<std::string> environment;
  for (char** own = environ; *own != nullptr; ++own) {
    const std::string variable = *own;
    const bool replaced = std::any_of(variables.begin(), variables.end(), [&](const auto& more) {
      return variable.starts_with(more.first + "=");
    });
    if (!replaced) environment.push_back(variable);
  }
  for (const auto& [name, value] : variables) environment.push_back(Text(name, '=', value));
  return environment;
}

// Runs between fork and exec. Locks of other threads may stay locked there for ever, so this
// function must not take any.
[[noreturn]] void Become(
    const std::vector<char*>& argv, const std::vector<char*>& environment, pid_t parent,
    int channel, int out, int err) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);
  dup2(channel, STDIN_FILENO);
  dup2(out, STDOUT_FILENO);
  dup2(err, STDERR_FILENO);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  execvpe(argv[0], argv.data(), environment.data());
  const char* why = strerrordesc_np(errno);
  for (const char* part : {static_cast<const char*>(argv[0]), ": ", why, "\n"}) {
    [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, part, std::strlen(part));
  }
  _exit(127);
}

}  // namespace

Child::Child(
    const std::vector<std::string>& words,
    const std::vector<std::pair<std::string, std::string>>& variables) {
  const std::vector<std::string> environment = Environment(variables);
  const std::vector<char*> argv = Pointers(words), envp = Pointers(environment);
  int in[2], out[2], err[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, in) != 0 || pipe2(out, O_CLOEXEC) != 0 ||
      pipe2(err, O_CLOEXEC) != 0)
    throw LaunchError(ExitCode::kInternal, Text("cannot make a pipe: ", std::strerror(errno)));
  const pid_t parent = getpid();
  process_ = fork();
  if (process_ == 0) Become(argv, envp, parent, in[1], out[1], err[1]);
  close(in[1]);
  close(out[1]);
  close(err[1]);
  in_ = in[0];
  out_ = out[0];
  err_ = err[0];
  if (process_ < 0)
    throw LaunchError(ExitCode::kInternal, Text("cannot start a process: ", std::strerror(errno)));
  end_ = static_cast<int>(syscall(SYS_pidfd_open, process_, 0));
}

Child::~Child() {
  if (process_ > 0) {
    kill(process_, SIGKILL);
    waitpid(process_, nullptr, 0);
  }
  for (const int file : {in_, out_, err_, end_})
    if (file >= 0) close(file);
}

void Child::Write(const std::string& text) {
  [[maybe_unused]] const ssize_t sent =
      send(in_, text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
}

// Returns false if no more output comes or the deadline has passed. A process that the child
// started may keep the child's stderr open, such as the master of an ssh connection. After the
// child's end, only output that is already there is therefore read.
bool Child::ReadSome(Clock::time_point deadline) {
  if (Clock::now() >= deadline) return false;
  pollfd files[] = {{out_, POLLIN, 0}, {err_, POLLIN, 0}, {end_, POLLIN, 0}};
  const int ready = poll(files, 3, MillisecondsUntil(deadline));
  if (ready < 0 && errno == EINTR) return true;
  if (ready <= 0) return false;
  if (files[0].revents == 0 && files[1].revents == 0) return false;
  for (const pollfd& file : {files[0], files[1]}) {
    if (file.fd < 0 || file.revents == 0) continue;
    char bytes[65536];
    const ssize_t got = read(file.fd, bytes, sizeof bytes);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) {
      close(file.fd);
      (file.fd == out_ ? out_ : err_) = -1;
      continue;
    }
    (file.fd == out_ ? line_ : complaint_).append(bytes, static_cast<size_t>(got));
  }
  if (complaint_.size() > kMostComplaint) complaint_.erase(0, complaint_.size() - kMostComplaint);
  return true;
}

std::optional<std::string> Child::ReadLine(Clock::time_point deadline) {
  for (;;) {
    const size_t end = line_.find('\n');
    if (end != std::string::npos) {
      std::string line = line_.substr(0, end);
      line_.erase(0, end + 1);
      return line;
    }
    if (line_.size() > kMostLine) return std::nullopt;
    if (out_ >= 0 && ReadSome(deadline)) continue;
    return line_.empty() ? std::nullopt : std::optional(std::exchange(line_, {}));
  }
}

std::optional<int> Child::Wait(Clock::time_point deadline) {
  if (in_ >= 0) close(std::exchange(in_, -1));
  while (ReadSome(deadline))
    if (line_.size() > kMostLine) line_.clear();
  pollfd end = {end_, POLLIN, 0};
  if (poll(&end, 1, MillisecondsUntil(deadline)) <= 0) return std::nullopt;
  int status = 0;
  while (waitpid(process_, &status, 0) < 0 && errno == EINTR) {
  }
  process_ = -1;
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

Said RunToEnd(
    const std::vector<std::string>& words, Child::Clock::time_point deadline,
    const std::vector<std::pair<std::string, std::string>>& variables) {
  Child child(words, variables);
  Said said;
  while (const auto line = child.ReadLine(deadline)) said.out += *line + "\n";
  said.exit_code = child.Wait(deadline);
  said.err = child.complaint();
  return said;
}

}  // namespace dtrun::launcher
