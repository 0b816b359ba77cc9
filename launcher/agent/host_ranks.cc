// A rank is started again with the command that /proc shows for its first wrapper. The library
// writes a note while a rank is in Init, and renames the note when the rank has joined. The note
// names the process. /proc shows the state of that process.

#include "launcher/agent/host_ranks.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <utility>

#include "base/flight_record.h"
#include "base/json.h"
#include "base/launch_env.h"
#include "base/text.h"
#include "base/trace.h"
#include "launcher/protocol/exit_record.h"
#include "launcher/protocol/job_folder.h"
#include "launcher/support/environment.h"
#include "launcher/support/launch_error.h"

namespace dtrun::launcher {
namespace {

using base::JsonText;
using base::Text;
using nlohmann::json;

}  // namespace

// ---- Start --------------------------------------------------------------------------------------

namespace {

// The strings of a file of /proc, each of which ends with a zero byte.
std::vector<std::string> StringsIn(const std::string& path) {
  std::string bytes = ReadFileOfSystem(path).value_or("");
  if (bytes.empty()) return {};
  bytes.pop_back();
  return base::Split(bytes, '\0');
}

// Sets the variables in `changed` (NAME=value).
void Replace(Variables& environment, const std::vector<std::string>& changed) {
  for (const std::string& variable : changed)
    Set(environment, NameOf(variable), variable.substr(variable.find('=') + 1));
}

// Runs between fork and exec, so it calls only async-signal-safe functions. Stdin and stdout of the
// agent lead to dtrun.
[[noreturn]] void Become(
    char* const argv[], char* const environment[], const char* folder, pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);
  setpgid(0, 0);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE, SIGUSR1, SIGUSR2})
    ::signal(signal, SIG_DFL);
  const int null = open("/dev/null", O_RDWR);
  dup2(null, STDIN_FILENO);
  dup2(null, STDOUT_FILENO);
  [[maybe_unused]] const int ignored = chdir(folder);
  execve(argv[0], argv, environment);
  _exit(static_cast<int>(ExitCode::kNotExecutable));
}

}  // namespace

// /proc shows the environment with which the process was started: the wrapper's own changes are in
// other memory.
RankStart RankStart::Of(pid_t wrapper) {
  const std::string process = Text("/proc/", wrapper);
  RankStart start;
  start.command_ = StringsIn(process + "/cmdline");
  start.environment_ = StringsIn(process + "/environ");
  std::error_code ignored;
  start.folder_ = std::filesystem::read_symlink(process + "/cwd", ignored);
  return start;
}

RankStart::RankStart(
    std::vector<std::string> command, const std::vector<std::string>& variables, std::string folder)
    : command_(std::move(command)), folder_(std::move(folder)) {
  for (char** variable = environ; *variable != nullptr; ++variable)
    environment_.emplace_back(*variable);
  Replace(environment_, variables);
}

void RankStart::Again(const std::vector<std::string>& changed) const {
  if (command_.empty())
    throw LaunchError(ExitCode::kInternal, "the command of a lost rank is not known");
  std::vector<std::string> environment = environment_;
  Replace(environment, changed);
  const std::vector<char*> argv = Pointers(command_), variables = Pointers(environment);
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child == 0) Become(argv.data(), variables.data(), folder_.c_str(), parent);
  if (child < 0)
    throw LaunchError(ExitCode::kInternal, Text("cannot start a process: ", std::strerror(errno)));
  setpgid(child, child);  // the child does the same; either may be first
}

void ForgetNotes(const std::string& folder, int rank) {
  const std::string note = ShutdownNote(folder, rank);
  std::error_code ignored;
  for (const std::string& file :
       {note, base::InitNote(note), base::JoinedNote(note),
        base::FlightFile(FlightFolder(folder), rank)})
    std::filesystem::remove(file, ignored);
}

void ReapChildren() {
  while (waitpid(-1, nullptr, WNOHANG) > 0) continue;
}

// ---- State --------------------------------------------------------------------------------------

RankView::RankView(const std::string& folder, int rank, pid_t wrapper)
    : note_(ShutdownNote(folder, rank)), wrapper_(wrapper) {}

// The note names the process that calls Init. If the program is a script, the wrapper's child is
// only its shell.
bool RankView::ReadNote(const std::string& file) {
  std::istringstream note(ReadFileOfSystem(file).value_or(""));
  pid_t process = -1;
  int timeout_s = 0, warning_s = 0, epoch = 0;
  if (!(note >> process >> timeout_s >> warning_s >> epoch)) return false;
  process_ = process;
  timeout_s_ = timeout_s;
  warning_s_ = warning_s;
  epoch_ = epoch;
  return true;
}

std::optional<std::string> RankView::Look() {
  stopped_wrapper_.Look(wrapper_);
  in_init_ = ReadNote(base::InitNote(note_));
  const bool has_joined = !in_init_ && ReadNote(base::JoinedNote(note_));
  joined_ = joined_ || has_joined;
  // A process that is killed while it is stopped counts as stopped to its end.
  const std::optional<ProcessView> process = ViewProcess(process_);
  if (process && process->running()) stopped_ = process->stopped();
  const json body = {{"init", in_init_},    {"joined", joined_},       {"epoch", epoch_},
                     {"stopped", stopped_}, {"timeout_s", timeout_s_}, {"warning_s", warning_s_}};
  std::string text = JsonText(body);
  if (text == told_) return std::nullopt;
  told_ = text;
  return text;
}

// ---- End ----------------------------------------------------------------------------------------

namespace {

// If the process ends meanwhile, it has no environment any more.
bool IsOfJob(const std::filesystem::path& process, const std::string& variable) {
  struct stat status;
  if (stat(process.c_str(), &status) != 0 || status.st_uid != geteuid()) return false;
  const std::string environment = ReadFileOfSystem(process / "environ").value_or("");
  return ('\0' + environment).find('\0' + variable + '\0') != std::string::npos;
}

}  // namespace

void SignalGroupOf(pid_t process, int signal) {
  const pid_t group = getpgid(process);
  if (group > 1 && group != getpgrp()) kill(-group, signal);
}

void KillProcessesOf(const std::string& job) {
  if (job.empty()) return;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", error)) {
    const auto process = base::ParseInteger(entry.path().filename().string());
    if (!process || *process == getpid()) continue;
    if (IsOfJob(entry.path(), "DTRUN_JOB=" + job)) kill(static_cast<pid_t>(*process), SIGKILL);
  }
}

// Two processes that were started within a tick of the clock have the same start time.
bool IsOutsideOfJob(pid_t process) {
  const auto view = ViewProcess(process), own = ViewProcess(getpid());
  if (!view || !own || view->start < own->start) return true;
  for (pid_t ancestor = own->parent; ancestor > 0;) {
    if (ancestor == process) return true;
    ancestor = ViewProcess(ancestor).value_or(ProcessView()).parent;
  }
  return false;
}

void LeftOvers::Look(pid_t process) {
  std::erase_if(starts_, [](const auto& known) {
    const auto view = ViewProcess(known.first);
    return !view || view->start != known.second;
  });
  if (IsOutsideOfJob(process)) return;
  for (const pid_t found : DescendantsOf(process))
    if (const auto view = ViewProcess(found)) starts_[found] = view->start;
}

void LeftOvers::Kill() const {
  for (const auto& [process, start] : starts_) {
    const auto view = ViewProcess(process);
    if (view && view->start == start) kill(process, SIGKILL);
  }
}

// ---- Records ------------------------------------------------------------------------------------

namespace {

void ForEachRecord(
    const std::string& folder, const std::function<void(int rank, const std::string& path)>& use) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const auto rank = base::ParseInteger(entry.path().filename().string());
    if (!rank || !entry.is_regular_file(error) || entry.is_symlink(error)) continue;
    use(static_cast<int>(*rank), entry.path());
  }
}

// The rank may change the totals while they are read, so no part may exceed its whole.
json JsonOf(const base::StepTotals& totals) {
  const int64_t total_ns = std::max<int64_t>(totals.total_ns, 0);
  const int64_t exposed_ns = std::clamp<int64_t>(totals.exposed_ns, 0, total_ns);
  return {
      {"steps", totals.steps},    {"total_ns", total_ns},
      {"exposed_ns", exposed_ns}, {"late_ns", std::clamp<int64_t>(totals.late_ns, 0, exposed_ns)},
      {"bytes", totals.bytes},    {"buckets", totals.buckets}};
}

}  // namespace

std::vector<Frame> FlightFrames(const std::string& folder) {
  std::vector<Frame> frames;
  ForEachRecord(folder, [&](int rank, const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    std::string bytes(kMostBody, '\0');
    file.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    bytes.resize(static_cast<size_t>(file.gcount()));
    frames.push_back({FrameType::kFlight, rank, std::move(bytes)});
  });
  return frames;
}

void ForEachTracePart(const std::string& folder, const std::function<void(Frame)>& use) {
  for (const base::FoundTrace& trace : base::FindTraces(folder)) {
    use({FrameType::kTrace, trace.rank, ""});
    base::WithTraceFile(trace.path, [&](const void* data, size_t bytes) {
      const auto* from = static_cast<const char*>(data);
      for (size_t begin = 0; begin < bytes; begin += kMostBody)
        use(
            {FrameType::kTrace, trace.rank,
             std::string(from + begin, std::min<size_t>(kMostBody, bytes - begin))});
    });
  }
}

Frame ProgressFrame(const std::string& folder) {
  json ranks = json::array();
  ForEachRecord(folder, [&](int rank, const std::string& path) {
    const auto progress = base::ReadFlightProgress(path);
    if (!progress || progress->rank != rank) return;
    ranks.push_back(
        {{"rank", rank},
         {"step", progress->step},
         {"examples", progress->examples},
         {"waited_ns", progress->waited_ns},
         {"reduced", JsonOf(progress->reduced)}});
  });
  return {FrameType::kProgress, -1, JsonText(ranks)};
}

}  // namespace dtrun::launcher
