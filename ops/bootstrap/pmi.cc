// Commands and answers are lines of words NAME=value:
//
//   cmd=get kvsname=kvs_41_0 key=place   ->   cmd=get_result rc=0 msg=success value=10.0.0.1:4711

#include "ops/bootstrap/pmi.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <optional>

#include "base/text.h"
#include "dtrun/error.h"

namespace dtrun::ops {
namespace {

using base::Text;

constexpr size_t kMostBytes = 64 << 10;  // of an answer

std::optional<std::string> ValueOf(const std::string& line, const std::string& name) {
  for (const std::string& word : base::Split(line, ' '))
    if (word.starts_with(name + "=")) return word.substr(name.size() + 1);
  return std::nullopt;
}

[[noreturn]] void Refused(const std::string& what) {
  throw Error(
      ErrorCode::kUnavailable,
      Text(
          "the launcher that started this process (PMI_FD) ", what,
          "; it serves one Init of each process: set MASTER_ADDR, MASTER_PORT and "
          "DTRUN_JOB_SECRET to do without it"));
}

}  // namespace

Pmi::Pmi(int file, std::chrono::seconds timeout) : file_(file), timeout_(timeout) {
  Ask("init pmi_version=1 pmi_subversion=1", "response_to_init");
  job_ = ValueOf(Ask("get_my_kvsname", "my_kvsname"), "kvsname").value_or("");
}

// Without these words, Hydra takes the end of the process for a crash.
Pmi::~Pmi() {
  try {
    Ask("finalize", "finalize_ack");
  } catch (const Error&) {
  }
}

void Pmi::Put(const std::string& key, const std::string& value) {
  Ask(Text("put kvsname=", job_, " key=", key, " value=", value), "put_result");
}

void Pmi::Barrier() { Ask("barrier_in", "barrier_out"); }

std::string Pmi::Get(const std::string& key) {
  return ValueOf(Ask(Text("get kvsname=", job_, " key=", key), "get_result"), "value").value_or("");
}

// Sends a command and returns the line of its answer.
std::string Pmi::Ask(const std::string& command, const std::string& answer) {
  const std::string line = Text("cmd=", command, '\n');
  // The connection may be a socket or a pipe. A closed one must not end the process.
  ssize_t sent = ::send(file_.get(), line.data(), line.size(), MSG_NOSIGNAL);
  if (sent < 0 && errno == ENOTSOCK) sent = ::write(file_.get(), line.data(), line.size());
  if (sent != static_cast<ssize_t>(line.size())) Refused("does not serve it any more");
  const Deadline deadline = std::chrono::steady_clock::now() + timeout_;
  for (;;) {
    if (const size_t end = unread_.find('\n'); end != std::string::npos) {
      const std::string got = unread_.substr(0, end);
      unread_.erase(0, end + 1);
      if (ValueOf(got, "cmd") != answer || ValueOf(got, "rc").value_or("0") != "0")
        Refused(Text("answered '", got, "' to '", command, "'"));
      return got;
    }
    if (!AwaitReady(file_.get(), POLLIN, deadline))
      throw Error(
          ErrorCode::kTimeout,
          Text(
              "waited ", timeout_.count(), " s for the answer of the launcher (PMI_FD) to '",
              command, "'"));
    char bytes[4096];
    const ssize_t count = ::read(file_.get(), bytes, sizeof bytes);
    if (count < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (count <= 0 || unread_.size() > kMostBytes) Refused("has closed the connection");
    unread_.append(bytes, static_cast<size_t>(count));
  }
}

}  // namespace dtrun::ops
