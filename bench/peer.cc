#include "bench/peer.h"

#include <dtrun/error.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <thread>

extern char** environ;

namespace dtrun::bench {
namespace {

// A step of a large network on a slow CPU takes minutes.
constexpr std::chrono::seconds kPatience{600};
// The time limit from the end of the peer's input to the end of the process.
constexpr std::chrono::seconds kFarewell{10};

std::string NameIn(const std::string& entry) { return entry.substr(0, entry.find('=')); }

std::vector<std::string> Environment(const std::vector<std::string>& changes) {
  std::vector<std::string> entries;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const auto changed = [&](const std::string& change) {
      return NameIn(change) == NameIn(*entry);
    };
    if (std::none_of(changes.begin(), changes.end(), changed)) entries.emplace_back(*entry);
  }
  for (const std::string& change : changes)
    if (change.find('=') != std::string::npos) entries.push_back(change);
  return entries;
}

std::vector<char*> Pointers(std::vector<std::string>& words) {
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  return pointers;
}

// Quotes and shortens the output of a peer for a one-line message.
std::string Shown(std::string line) {
  constexpr size_t kMost = 200;
  if (line.size() > kMost) line = line.substr(0, kMost) + "...";
  return "'" + line + "'";
}

std::string HowItEnded(int status) {
  if (WIFSIGNALED(status)) return "ended by signal " + std::to_string(WTERMSIG(status));
  return "ended with exit code " + std::to_string(WEXITSTATUS(status));
}

}  // namespace

void Descriptor::Reset(int fd) {
  if (fd_ >= 0) ::close(fd_);
  fd_ = fd;
}

Peer::Peer(
    const std::string& command, const std::vector<std::string>& options,
    const std::vector<std::string>& environment)
    : command_(command) {
  Start(options, environment);
  try {
    ReadReady();
  } catch (...) {
    End(std::chrono::seconds(0));
    throw;
  }
}

Peer::~Peer() { End(kFarewell); }

void Peer::Start(
    const std::vector<std::string>& options, const std::vector<std::string>& environment) {
  std::string line = "exec " + command_;
  for (const std::string& option : options) line += " " + option;
  std::vector<std::string> words = {"/bin/sh", "-c", line}, entries = Environment(environment);
  complaints_.Reset(::memfd_create("peer", MFD_CLOEXEC));
  int ends[2] = {-1, -1};
  if (complaints_.get() < 0 || ::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
    Fail(std::string("cannot be started: ") + std::strerror(errno));
  socket_.Reset(ends[0]);
  const Descriptor its_end(ends[1]);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, its_end.get(), 0);
  ::posix_spawn_file_actions_adddup2(&actions, its_end.get(), 1);
  ::posix_spawn_file_actions_adddup2(&actions, complaints_.get(), 2);
  const int error = ::posix_spawn(
      &process_, words[0].c_str(), &actions, nullptr, Pointers(words).data(),
      Pointers(entries).data());
  ::posix_spawn_file_actions_destroy(&actions);
  if (error == 0) return;
  process_ = -1;
  Fail(std::string("cannot be started: ") + std::strerror(error));
}

void Peer::ReadReady() {
  constexpr char kReady[] = "ready ";
  const std::string expected = "'ready {\"name\": ..., \"variants\": [...], \"parameters\": ...}'";
  const std::string line = ReadLine();
  if (line.rfind(kReady, 0) != 0) FailAfter(line, expected);
  const auto words = nlohmann::json::parse(
      line.substr(std::strlen(kReady)), /*callback=*/nullptr, /*allow_exceptions=*/false);
  try {
    name_ = words.at("name").get<std::string>();
    variants_ = words.at("variants").get<std::vector<std::string>>();
    parameters_ = words.at("parameters").get<uint64_t>();
  } catch (const nlohmann::json::exception&) {
    FailAfter(line, expected);
  }
  if (variants_.empty()) FailAfter(line, expected);
}

void Peer::Step(const std::string& variant) {
  const std::string request = "step " + variant + "\n";
  // If the peer is gone, ReadLine finds no answer.
  (void)::send(socket_.get(), request.data(), request.size(), MSG_NOSIGNAL);
  const std::string answer = ReadLine();
  if (answer != "done") FailAfter(answer, "'done' after a step");
}

std::string Peer::ReadLine() {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  for (;;) {
    const size_t end = received_.find('\n');
    if (end != std::string::npos) {
      const std::string line = received_.substr(0, end);
      received_.erase(0, end + 1);
      return line;
    }
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        deadline - std::chrono::steady_clock::now());
    pollfd waiting{socket_.get(), POLLIN, 0};
    if (left.count() <= 0 || ::poll(&waiting, 1, static_cast<int>(left.count())) == 0)
      Fail("has not answered for " + std::to_string(kPatience.count()) + " s");
    char bytes[4096];
    const ssize_t count = ::recv(socket_.get(), bytes, sizeof(bytes), 0);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return "";
    received_.append(bytes, static_cast<size_t>(count));
  }
}

int Peer::End(std::chrono::seconds patience) {
  socket_.Close();
  const auto deadline = std::chrono::steady_clock::now() + patience;
  int status = 0;
  while (process_ > 0 && ::waitpid(process_, &status, WNOHANG) == 0) {
    if (std::chrono::steady_clock::now() >= deadline) {
      ::kill(process_, SIGKILL);
      ::waitpid(process_, &status, 0);
      break;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  process_ = -1;
  return status;
}

void Peer::Fail(const std::string& what) const {
  throw Error(ErrorCode::kUnavailable, "peer '" + command_ + "': " + what);
}

// An empty answer means that the process has closed its output and is about to end.
void Peer::FailAfter(const std::string& answer, const std::string& expected) {
  if (!answer.empty()) Fail("said " + Shown(answer) + "; expected " + expected);
  const std::string end = HowItEnded(End(kFarewell)), complaint = LastComplaint();
  Fail(end + (complaint.empty() ? "" : ": " + complaint) + "; expected " + expected);
}

std::string Peer::LastComplaint() const {
  std::string text(4096, '\0');
  const off_t size = ::lseek(complaints_.get(), 0, SEEK_END);
  const off_t from = std::max<off_t>(0, size - static_cast<off_t>(text.size()));
  const ssize_t count = ::pread(complaints_.get(), text.data(), text.size(), from);
  text.resize(static_cast<size_t>(std::max<ssize_t>(0, count)));
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
  return text.substr(text.rfind('\n') + 1);
}

std::vector<std::string> PeerEnvironment(const std::string& limit, const std::string& isa) {
  std::vector<std::string> changes = {"OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"};
  if (limit.empty()) return changes;
  struct Level {
    const char *isa, *aten, *mkl;
  };
  // `isa` is the beginning of oneDNN's name for the level.
  constexpr Level kLevels[] = {
      {"AVX512", "avx512", "AVX512"},
      {"AVX10", "avx512", "AVX512"},
      {"AVX2", "avx2", "AVX2"},
      {"AVX", "default", "AVX"},
      {"SSE41", "default", "SSE4_2"}};
  for (const Level& level : kLevels) {
    if (isa.rfind(level.isa, 0) != 0) continue;
    changes.push_back(std::string("ATEN_CPU_CAPABILITY=") + level.aten);
    changes.push_back(std::string("MKL_ENABLE_INSTRUCTIONS=") + level.mkl);
    break;
  }
  changes.push_back("ONEDNN_MAX_CPU_ISA=" + limit);
  return changes;
}

}  // namespace dtrun::bench
