// The wrapper blocks all signals, starts the program with vfork and waits for its end on a pidfd.
// Meanwhile it delivers the agent's notices and SIGTERM to the program. It reports the end to the
// agent, then ends with the same exit code or by the same signal; rank_wrapper.h lists the
// exceptions.

#include "launcher/rank/rank_wrapper.h"

#include <elf.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <thread>
#include <utility>

#include "base/json.h"
#include "base/text.h"
#include "launcher/engines/mpirun.h"
#include "launcher/support/host_system.h"
#include "launcher/support/launch_error.h"

namespace dtrun::launcher {
namespace {

using base::JsonText;
using base::ParseJson;
using nlohmann::json;

constexpr int kPatienceMs = 30'000;

void Send(int connection, const Frame& frame) {
  const std::string bytes = Encode(frame);
  [[maybe_unused]] const ssize_t sent = send(connection, bytes.data(), bytes.size(), MSG_NOSIGNAL);
}

}  // namespace

// ---- The connection to the agent ----------------------------------------------------------------

RankLink::RankLink(const std::string& job, int host, int rank, int out, int err)
    : connection_(ConnectToAgent(job, host)), rank_(rank) {
  SendWithFiles(connection_, Encode({FrameType::kHello, rank, OwnSessionFolder()}), {out, err});
  folder_ = ParseJson(Welcome().body).at("folder");
}

RankLink::~RankLink() {
  CloseInput();
  close(connection_);
}

// The agent's first frame. The descriptor of the program's stdin may come with it.
Frame RankLink::Welcome() {
  std::vector<int> files;
  for (;;) {
    pollfd ready = {connection_, POLLIN, 0};
    char bytes[4096];
    const ssize_t got = poll(&ready, 1, kPatienceMs) > 0
                            ? ReceiveWithFiles(connection_, bytes, sizeof bytes, files)
                            : 0;
    if (got < 0) continue;
    if (got == 0)
      throw LaunchError(ExitCode::kInternal, "the agent of this host did not answer this rank");
    if (!files.empty()) input_ = files.back();
    reader_.Feed(bytes, static_cast<size_t>(got));
    if (const std::optional<Frame> frame = reader_.Next()) return *frame;
  }
}

void RankLink::CloseInput() {
  if (input_ >= 0) close(input_);
  input_ = -1;
}

std::optional<std::vector<Frame>> RankLink::Hear() {
  char bytes[4096];
  const ssize_t got = recv(connection_, bytes, sizeof bytes, MSG_DONTWAIT);
  if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) return std::nullopt;
  if (got > 0) reader_.Feed(bytes, static_cast<size_t>(got));
  std::vector<Frame> frames;
  while (const std::optional<Frame> frame = reader_.Next()) frames.push_back(*frame);
  return frames;
}

void RankLink::SayStarted(pid_t program) {
  Send(connection_, {FrameType::kProgram, rank_, JsonText(json{{"pid", program}})});
}

void RankLink::SayEnded(RankEnd end, int value, int64_t at_ns, int64_t address_limit, bool alone) {
  const json body = {
      {"end", static_cast<int>(end)},
      {"value", value},
      {"at_ns", at_ns},
      {"address_limit", address_limit},
      {"alone", alone}};
  Send(connection_, {FrameType::kExit, rank_, JsonText(body)});
}

void RankLink::SayTakes(bool takes) {
  Send(connection_, {FrameType::kTakes, rank_, JsonText(json{{"takes", takes}})});
}

// ---- The program --------------------------------------------------------------------------------

/// The dynamic loader of a program, from the first bytes of its file. "": a script, a static
/// program, or a program that names the loader beyond these bytes.
std::string LoaderOf(const std::string& start);

/// Whether the dynamic loader of `file` does not find one of its shared libraries, in the
/// environment of this process. Runs the loader with --list, as ldd does, but not the program.
bool LacksSharedLibrary(const std::string& file);

namespace {

// The child shares its parent's memory until exec, so the parent sees the child's errno.
struct Spawned {
  pid_t pid;
  int exec_errno;
};

struct Files {
  int in, out, err;  // in is -1: mpirun's empty stdin
};

[[gnu::noinline]] Spawned Spawn(char* const* argv, const sigset_t& mask, const Files& files) {
  const pid_t parent = getpid();
  volatile int exec_errno = 0;
  const pid_t child = vfork();
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
    if (files.in >= 0) dup2(files.in, STDIN_FILENO);
    dup2(files.out, STDOUT_FILENO);
    dup2(files.err, STDERR_FILENO);
    ::signal(SIGPIPE, SIG_DFL);  // dtrun's own processes ignore it
    sigprocmask(SIG_SETMASK, &mask, nullptr);
    execv(argv[0], argv);
    exec_errno = errno;
    _exit(1);
  }
  return {child, child < 0 ? errno : exec_errno};
}

[[noreturn]] void DieOf(int signal) {
  const rlimit no_core = {0, 0};  // the program has dumped its own core
  setrlimit(RLIMIT_CORE, &no_core);
  ::signal(signal, SIG_DFL);
  raise(signal);  // stays pending: all signals are blocked here
  sigset_t others;
  sigfillset(&others);
  sigdelset(&others, signal);
  sigprocmask(SIG_SETMASK, &others, nullptr);
  _exit(128 + signal);
}

// An early notice. A starting program may install its handler later, so a notice without a taker is
// repeated.
class Notice {
 public:
  explicit Notice(RankLink& link) : link_(link) {}

  void Give() {
    waiting_ = true;
    link_.SayTakes(Deliver());
  }
  void Tick() {
    if (waiting_ && Deliver()) link_.SayTakes(true);
  }
  bool waiting() const { return waiting_; }

 private:
  bool Deliver() {
    for (const pid_t taker : NoticeTakers())
      if (kill(taker, NoticeSignal()) == 0) waiting_ = false;
    return !waiting_;
  }

  RankLink& link_;
  bool waiting_ = false;
};

// Obeys the agent's frames until the program ends. Returns whether the program was told to
// terminate.
bool ObeyWhileItRuns(pid_t program, RankLink& link) {
  constexpr int kLookAgainMs = 200;
  bool terminated = false;
  const int ended = static_cast<int>(syscall(SYS_pidfd_open, program, 0));
  if (ended < 0) return terminated;
  Notice notice(link);
  // Frames that came with the agent's welcome are already read, so the loop starts with Hear.
  for (pollfd files[] = {{ended, POLLIN, 0}, {link.file(), POLLIN, POLLIN}}; files[0].revents == 0;
       poll(files, 2, notice.waiting() ? kLookAgainMs : -1)) {
    notice.Tick();
    if (files[1].revents == 0) continue;
    const std::optional<std::vector<Frame>> frames = link.Hear();
    if (!frames) files[1].fd = -1;  // the agent is gone
    for (const Frame& frame : frames.value_or(std::vector<Frame>{})) {
      if (frame.type == FrameType::kNotice) notice.Give();
      if (frame.type != FrameType::kTerminate || std::exchange(terminated, true)) continue;
      const pid_t target = getpgrp() == getpid() ? 0 : program;  // 0: the whole group
      kill(target, SIGTERM);                                     // this process blocks it
      kill(target, SIGCONT);
    }
  }
  close(ended);
  return terminated;
}

// The engine ends all ranks when it sees the first one end. After kTerminate, other ranks may still
// be saving, so this wrapper stays until dtrun tells the engine to end the job.
void OutliveProgram(RankLink& link) {
  constexpr std::chrono::seconds kLongest{60};  // dtrun or the agent acts long before
  sigset_t told;
  sigemptyset(&told);
  sigaddset(&told, SIGTERM);
  const timespec none = {0, 0};
  // Removes the SIGTERM that ObeyWhileItRuns sent to this process's group.
  sigtimedwait(&told, nullptr, &none);
  const int signals = signalfd(-1, &told, SFD_CLOEXEC);
  const auto until = std::chrono::steady_clock::now() + kLongest;
  pollfd files[] = {{signals, POLLIN, 0}, {link.file(), POLLIN, 0}};
  while (std::chrono::steady_clock::now() < until) {
    poll(files, 2, 1000);
    if (files[0].revents != 0 || (files[1].revents != 0 && !link.Hear())) break;
  }
  if (signals >= 0) close(signals);
}

// Waits for the program's end without reaping it, because /proc shows its limits only until then.
// The program may have set its limits itself. Returns AddressLimitIn.
int64_t AwaitEnd(pid_t program) {
  if (program <= 0) return 0;
  siginfo_t info;
  while (waitid(P_PID, static_cast<id_t>(program), &info, WEXITED | WNOWAIT) < 0 &&
         errno == EINTR) {
  }
  return AddressLimitIn(ReadFileOfSystem(base::Text("/proc/", program, "/limits")).value_or(""));
}

}  // namespace

// mpirun sends its signals to the process group, so they also reach the program.
int RunProgram(
    const std::vector<std::string>& words, RankLink& link, int out, int err, bool expendable) {
  std::vector<char*> argv;
  for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  sigset_t all;
  sigset_t original;
  sigfillset(&all);
  sigprocmask(SIG_SETMASK, &all, &original);
  sigdelset(&original, NoticeSignal());  // if blocked, the program would seem to take notices
  const Spawned program = Spawn(argv.data(), original, {link.input(), out, err});
  close(out);
  close(err);
  link.CloseInput();
  if (program.exec_errno == 0) link.SayStarted(program.pid);
  const bool terminated = program.exec_errno == 0 && ObeyWhileItRuns(program.pid, link);
  int status = 0;
  const int64_t address_limit = AwaitEnd(program.pid);
  const int64_t ended = MonotonicNs();
  if (program.pid > 0)
    while (waitpid(program.pid, &status, 0) < 0 && errno == EINTR) {
    }
  if (program.exec_errno != 0) {
    link.SayEnded(RankEnd::kNotStarted, program.exec_errno, ended);
    return static_cast<int>(
        program.exec_errno == ENOENT ? ExitCode::kNotFound : ExitCode::kNotExecutable);
  }
  if (WIFSIGNALED(status)) {
    // An engine signals the whole group, so its signal is also pending in this process.
    sigset_t pending;
    sigpending(&pending);
    const bool alone = sigismember(&pending, WTERMSIG(status)) == 0;
    link.SayEnded(RankEnd::kSignaled, WTERMSIG(status), ended, address_limit, alone);
    if (terminated) OutliveProgram(link);
    if (expendable) return 0;
    DieOf(WTERMSIG(status));
  }
  const int code = WEXITSTATUS(status);
  // The dynamic loader also exits with this code.
  if (code == static_cast<int>(ExitCode::kNotFound) && LacksSharedLibrary(words[0])) {
    link.SayEnded(RankEnd::kNotStarted, ELIBACC, ended);
    return static_cast<int>(ExitCode::kNotExecutable);
  }
  link.SayEnded(RankEnd::kExited, code, ended, address_limit);
  if (terminated) OutliveProgram(link);
  return expendable || code == static_cast<int>(ExitCode::kPreempted) ? 0 : code;
}

namespace {

bool Holds(const std::string& status, const char* set, int signal) {
  const size_t at = status.find(set);
  if (at == std::string::npos) return false;
  const uint64_t signals =
      std::strtoull(status.c_str() + at + std::string(set).size(), nullptr, 16);
  return (signals >> (signal - 1) & 1) != 0;
}

}  // namespace

int NoticeSignal() { return SIGUSR1; }

bool TakesNotices(const std::string& status) {
  return Holds(status, "\nSigCgt:", SIGUSR1) || Holds(status, "\nSigBlk:", SIGUSR1);
}

namespace {

std::string StatusOf(pid_t process) {
  return ReadFileOfSystem(base::Text("/proc/", process, "/status")).value_or("");
}

// The page faults of the children that the process has waited for.
uint64_t FaultsOfChildren(pid_t process) {
  constexpr int kFields = 8;  // between the name and the number
  const std::string stat = ReadFileOfSystem(base::Text("/proc/", process, "/stat")).value_or("");
  std::istringstream fields(stat.substr(std::min(stat.size(), stat.rfind(')') + 1)));
  std::string skipped;
  for (int i = 0; i < kFields; ++i) fields >> skipped;
  uint64_t faults = 0;
  fields >> faults;
  return faults;
}

// The C library blocks all signals of a process while it forks. A program that blocks them to wait
// for them does so each time, and does not start one process after the other.
bool IsTaker(pid_t process) {
  constexpr std::chrono::milliseconds kPause{5};
  const uint64_t faults = FaultsOfChildren(process);
  for (int looks = 12; looks > 0; --looks) {
    const std::string status = StatusOf(process);
    if (!TakesNotices(status)) return false;
    if (!Holds(status, "\nSigBlk:", SIGSEGV)) return true;
    std::this_thread::sleep_for(kPause);
    if (FaultsOfChildren(process) != faults) return false;
  }
  return true;
}

}  // namespace

std::vector<pid_t> NoticeTakers() {
  std::vector<pid_t> takers;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", error)) {
    const auto number = base::ParseInteger(entry.path().filename().string());
    if (!number) continue;
    const auto process = static_cast<pid_t>(*number);
    if (process == getpid() || getpgid(process) != getpgrp()) continue;
    if (IsTaker(process)) takers.push_back(process);
  }
  return takers;
}

namespace {

constexpr size_t kStart = 64 << 10;     // linkers put the headers and the loader's name first
constexpr int kLoaderCannotLoad = 127;  // glibc's code

// Reads a header at `offset`; false: the text is too short.
template <typename Header>
bool ReadHeader(const std::string& text, uint64_t offset, Header& header) {
  if (offset > text.size() || text.size() - offset < sizeof header) return false;
  std::memcpy(&header, text.data() + offset, sizeof header);
  return true;
}

// The exit code of `argv`, run with /dev/null as its standard streams; -1: killed by a signal, or
// not started.
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
