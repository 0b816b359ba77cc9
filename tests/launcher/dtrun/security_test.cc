// Protection against other users of this host, and the hardening of the programs:
// docs/reference/security.md. tests/multihost covers jobs on several hosts.

#include <unistd.h>

#include <catch2/catch.hpp>
#include <string>

#include "tests/launcher/dtrun/process_test.h"

namespace dtrun::testing {
namespace {

using Catch::Matchers::Contains;

// Asks the agent of job argv[1], which has only one host, to accept this process as a rank. The
// process runs as user argv[2]. argv[3] is the type of the message that it sends, or "none". Prints
// the number of bytes that come back before the agent hangs up.
constexpr char kStranger[] = R"(
import os, socket, struct, sys
os.setuid(int(sys.argv[2]))
agent = socket.socket(socket.AF_UNIX)
agent.settimeout(20)
agent.connect("\0dtrun." + sys.argv[1] + ".0")
try:
    if sys.argv[3] != "none":
        agent.sendall(struct.pack("<IBi", 0, int(sys.argv[3]), 0))
    got = b""
    while more := agent.recv(100):
        got += more
    print(len(got), flush=True)
except (BrokenPipeError, ConnectionResetError):
    print(0, flush=True)
)";

TEST_CASE("an agent hangs up on another user and on invalid messages") {
  const DtrunTest test;
  const bool stranger = GENERATE(true, false);
  if (stranger && geteuid() != 0) return;  // only root can become another user
  const std::string user = stranger ? "65534" : std::to_string(geteuid());
  const std::string message = stranger ? "none" : "255";  // 255 is no message type
  const std::string script = test.temp.Write("stranger.py", kStranger);
  const CommandResult result = test.Run(
      {"-np", "1", "sh", "-c", "python3 \"$0\" $DTRUN_JOB \"$1\" \"$2\"; echo the job goes on",
       script, user, message});
  CAPTURE(result.err);
  CHECK(result.out == "0\nthe job goes on\n");
  CHECK(result.exit_code == 0);
}

TEST_CASE("the environment of a rank holds no secret of dtrun") {
  const DtrunTest test;
  const CommandResult result = test.RunScript(
      1, "unset DTRUN_TEST_FULL; env | grep -oE '^DTRUN_[A-Z_]*' | sort | tr '\\n' ' '");
  // The name of the job is no secret: both ends of a socket ask the kernel for the identity of the
  // other end.
  CHECK(
      result.out ==
      "DTRUN_BIND DTRUN_FLIGHT_FOLDER DTRUN_HOSTS DTRUN_JOB DTRUN_LAUNCHER_VERSION "
      "DTRUN_SHUTDOWN_NOTE DTRUN_TERMINAL_COLUMNS DTRUN_THREADS ");
}

TEST_CASE("neither dtrun nor its agent nor the wrapper of a rank listens on the network") {
  const DtrunTest test;
  // The rank inspects its wrapper, dtrun, and the children of dtrun with names that begin with
  // dtrun.
  const CommandResult result = test.Run(
      {"-np", "1", "python3", "-c",
       R"(
import glob, os
listening = set()
for table in ("/proc/net/tcp", "/proc/net/tcp6"):
    for line in open(table).readlines()[1:]:
        words = line.split()
        if words[3] == "0A":
            listening.add("socket:[" + words[9] + "]")
def parent(pid): return int(open(f"/proc/{pid}/stat").read().rsplit(chr(41))[-1].split()[1])
wrapper = os.getppid()
dtrun = parent(parent(wrapper))
seen = []
for pid in [wrapper, dtrun, *open(f"/proc/{dtrun}/task/{dtrun}/children").read().split()]:
    name = os.path.basename(os.readlink(f"/proc/{pid}/exe"))
    links = [os.readlink(file) for file in glob.glob(f"/proc/{pid}/fd/*") if os.path.islink(file)]
    if name.startswith("dtrun"):
        seen.append(name)
        assert not listening.intersection(links), name
print(*sorted(set(seen)))
)"});
  CHECK(result.err.empty());
  CHECK(result.out == "dtrun dtrun_agent dtrun_rank\n");
}

TEST_CASE("the programs and libraries are hardened") {
  for (const std::string file :
       {"launcher/dtrun", "launcher/dtrun_agent", "launcher/dtrun_rank", "runtime/libdtrun.so.0",
        "runtime/libdtrun_mpi.so"}) {
    CAPTURE(file);
    const std::string elf = Run({{"readelf", "-hldW", file}}).out;
    CHECK_THAT(elf, Contains("DYN (") && Contains("GNU_RELRO") && Contains("BIND_NOW"));
    CHECK_THAT(elf, Catch::Matches("[^]*GNU_STACK[^\\n]*RW [^]*"));
    CHECK_THAT(elf, !Contains("TEXTREL"));
    const std::string symbols = Run({{"nm", "-D", file}}).out;
    CHECK_THAT(symbols, Contains("__stack_chk_fail"));
    if (file.starts_with("launcher/")) {
      CHECK_THAT(elf, Contains("PIE"));
      CHECK_THAT(symbols, Contains("__snprintf_chk"));  // _FORTIFY_SOURCE
    }
  }
}

}  // namespace
}  // namespace dtrun::testing
