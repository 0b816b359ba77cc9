// Events from outside during a job: signals, and the keys by which a terminal sends signals.

#include <signal.h>
#include <sys/wait.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "base/text.h"
#include "tests/launcher/dtrun/process_test.h"

namespace dtrun::testing {
namespace {

using namespace std::chrono_literals;
using Catch::Matchers::Contains;

std::string Preemptible() { return std::filesystem::absolute(std::getenv("PREEMPTIBLE")); }

std::vector<pid_t> Numbers(const std::string& text) {
  std::istringstream stream(text);
  std::vector<pid_t> numbers;
  for (pid_t number; stream >> number;) numbers.push_back(number);
  return numbers;
}

// Two ranks that have printed their process ids and wait.
struct TwoRanks {
  DtrunTest test;
  Subprocess dtrun;
  std::vector<pid_t> pids;
  std::vector<ProcessWatch> processes;

  TwoRanks(const Words& program, const Words& options = {}, const Words& before = {})
      : dtrun(Line(program, options, before)) {
    REQUIRE(dtrun.WaitForLines(2));
    pids = Numbers(dtrun.out());
    for (const pid_t pid : pids) processes.emplace_back(pid);
    for (const ProcessWatch& process : processes) REQUIRE(process.found());
  }
  explicit TwoRanks(const std::string& behaviour, const Words& options = {})
      : TwoRanks(Words{Preemptible(), behaviour}, options) {}

  Command Line(const Words& program, const Words& options, const Words& before) const {
    Words words = {"-np", "2"};
    words.insert(words.end(), options.begin(), options.end());
    words.insert(words.end(), program.begin(), program.end());
    Command command = test.Line(words);
    command.argv.insert(command.argv.begin(), before.begin(), before.end());
    return command;
  }

  bool AllGone() const {
    return std::all_of(processes.begin(), processes.end(), [](const ProcessWatch& process) {
      return process.Ends(2s);
    });
  }
};

const Words kUnaware = {"sh", "-c", "echo $$; exec sleep 600"};

char StateOf(pid_t pid) {
  std::string line;
  std::getline(std::ifstream(base::Text("/proc/", pid, "/stat")), line);
  const size_t end = line.rfind(')');
  return end == std::string::npos ? '-' : line[end + 2];
}

TEST_CASE("a shell that starts one process after the other takes no notices") {
  TwoRanks job(Words{"sh", "-c", "echo $$; while :; do /bin/true; done"});
  job.dtrun.Signal(SIGTERM);
  const CommandResult result = job.dtrun.Wait();
  CHECK(result.exit_code == 128 + SIGTERM);
  CHECK(result.err == "dtrun: ended by SIGTERM\n");  // nothing about time to save
}

TEST_CASE("ranks that take a notice get time to save and dtrun exits with code 75") {
  const auto [behaviour, signal] =
      GENERATE(std::pair("save", SIGTERM), std::pair("wait", SIGINT), std::pair("done", SIGHUP));
  TwoRanks job(behaviour);
  job.dtrun.Signal(signal);
  const CommandResult result = job.dtrun.Wait();
  CAPTURE(behaviour, result.err);
  CHECK(result.exit_code == 75);
  CHECK_THAT(result.out, Contains("noticed\nnoticed\n"));
  CHECK_THAT(
      result.err, Contains("the ranks have 10 s (--grace) to save and end") &&
                      Catch::EndsWith("dtrun: pre-empted: the ranks had saved and ended\n"));
  CHECK(LineCount(result.err) == 2);
  CHECK(job.test.temp.Entries().empty());
}

TEST_CASE("a program started by a script gets the notice") {
  TwoRanks job(Words{"sh", "-c", Preemptible() + " save; exit $?"});
  job.dtrun.Signal(SIGTERM);
  CHECK(job.dtrun.Wait().exit_code == 75);
}

TEST_CASE("SIGUSR1 to dtrun gives the notice and does not end the job") {
  const auto [behaviour, code] = GENERATE(std::pair("save", 75), std::pair("done", 0));
  TwoRanks job(behaviour);
  job.dtrun.Signal(SIGUSR1);
  const CommandResult result = job.dtrun.Wait();
  CHECK_THAT(result.out, Contains("noticed\nnoticed\n"));
  CHECK(result.exit_code == code);

  TwoRanks unaware(kUnaware);
  unaware.dtrun.Signal(SIGUSR1);
  CHECK_FALSE(unaware.processes[0].Ends(300ms));
  unaware.dtrun.Signal(SIGTERM);
  CHECK(unaware.dtrun.Wait().exit_code == 143);
}

TEST_CASE("SIGUSR1 does not end a program without a handler") {
  const DtrunTest test;
  const CommandResult result = test.RunScript(2, "kill -USR1 0; kill -USR1 $$; echo alive");
  CHECK(result.out == "alive\nalive\n");
  CHECK(result.exit_code == 0);
}

TEST_CASE("ranks that outlive the grace time are ended") {
  const auto [behaviour, grace, noticed] =
      GENERATE(std::tuple("ignore", "1", true), std::tuple("save", "0", false));
  TwoRanks job(behaviour, {"--grace", grace});
  job.dtrun.Signal(SIGTERM);
  const CommandResult result = job.dtrun.Wait();
  CHECK(result.exit_code == 143);
  CHECK((result.out.find("noticed") != std::string::npos) == noticed);
  CHECK_THAT(result.err, Catch::EndsWith("dtrun: ended by SIGTERM\n"));
  CHECK(job.AllGone());
}

TEST_CASE("a second signal ends the grace time") {
  TwoRanks job("ignore", {"--grace", "600"});
  job.dtrun.Signal(SIGINT);
  REQUIRE(job.dtrun.WaitForLines(4));
  job.dtrun.Signal(SIGTERM);
  CHECK(job.dtrun.Wait().exit_code == 130);
  CHECK(job.AllGone());
  CHECK(job.test.temp.Entries().empty());
}

TEST_CASE("a process killed during the grace time leaves no rank and no file") {
  TwoRanks job("ignore", {"--grace", "600"});
  const std::string victim = GENERATE("dtrun", "mpirun", "rank");
  job.dtrun.Signal(SIGTERM);
  REQUIRE(job.dtrun.WaitForLines(4));
  if (victim == "dtrun") job.dtrun.Signal(SIGKILL);
  if (victim == "rank") kill(job.pids[1], SIGKILL);
  if (victim == "mpirun") {
    const std::string children = base::Text("/proc/", job.dtrun.pid(), "/task/", job.dtrun.pid());
    std::ifstream stream(children + "/children");
    for (pid_t child; stream >> child;) {
      std::string name;
      std::getline(std::ifstream(base::Text("/proc/", child, "/comm")), name);
      if (name == "mpirun") kill(child, SIGKILL);
    }
  }
  CAPTURE(victim);
  CHECK(job.dtrun.Wait().exit_code == (victim == "dtrun" ? 137 : 143));
  CHECK(job.AllGone());
  CHECK(Soon([&] { return job.test.temp.Entries().empty(); }));
}

TEST_CASE("a rank that runs on after another has saved is named and gives exit code 76") {
  TwoRanks job("rank0", {"--grace", "1"});
  job.dtrun.Signal(SIGUSR1);
  const CommandResult result = job.dtrun.Wait();
  CHECK(result.exit_code == 76);
  CHECK_THAT(
      result.err,
      Catch::StartsWith("dtrun: rank 1 on localhost still ran 1 s (--grace) after rank 0 had saved "
                        "and ended with code 75\n"));
  CHECK(LineCount(result.err) == 2);  // the second line: pid and time
}

// A wrapper is a connection to the agent. This wrapper has not yet said which rank it is.
TEST_CASE("a wrapper that has not introduced itself gets no message when the job ends") {
  const DtrunTest test;
  Subprocess dtrun(test.Line(
      {"-np", "1", "python3", "-uc",
       R"(
import os, signal, socket
wrapper = socket.socket(socket.AF_UNIX)
wrapper.connect(f"\0dtrun.{os.environ['DTRUN_JOB']}.0")
told = []
signal.signal(signal.SIGTERM, lambda *_: told.append(True))
print("up")
while not told:
    signal.pause()
wrapper.settimeout(0.2)
try:
    print("heard", wrapper.recv(100))
except TimeoutError:
    print("heard nothing")
)"}));
  REQUIRE(dtrun.WaitForLines(1));
  dtrun.Signal(SIGTERM);
  const CommandResult result = dtrun.Wait();
  CHECK(result.exit_code == 143);
  CHECK(result.out == "up\nheard nothing\n");
}

TEST_CASE("SIGHUP does not end a job that was started to ignore SIGHUP") {
  TwoRanks job(kUnaware, {}, {"sh", "-c", "trap '' HUP; exec \"$@\"", "sh"});
  job.dtrun.Signal(SIGHUP);
  job.dtrun.Signal(SIGTERM);
  CHECK(job.dtrun.Wait().exit_code == 143);
}

TEST_CASE("Ctrl-Z stops dtrun and the ranks and fg continues them") {
  TwoRanks job("save", {"--timeout", "20"});
  job.dtrun.Signal(SIGTSTP);
  siginfo_t stopped = {};
  REQUIRE(waitid(P_PID, static_cast<id_t>(job.dtrun.pid()), &stopped, WSTOPPED) == 0);
  for (const pid_t pid : job.pids) CHECK(Soon([&] { return StateOf(pid) == 'T'; }));
  job.dtrun.Signal(SIGCONT);
  for (const pid_t pid : job.pids) CHECK(Soon([&] { return StateOf(pid) != 'T'; }));
  job.dtrun.Signal(SIGUSR1);
  const CommandResult result = job.dtrun.Wait();
  CHECK(result.exit_code == 75);
  CHECK_THAT(result.out, Contains("noticed\nnoticed\n"));
}

TEST_CASE("a stopped job can be ended by a signal and ends when dtrun is killed") {
  TwoRanks job(kUnaware);
  const auto [signal, code] = GENERATE(std::pair(SIGTERM, 143), std::pair(SIGKILL, 137));
  job.dtrun.Signal(SIGTSTP);
  siginfo_t stopped = {};
  REQUIRE(waitid(P_PID, static_cast<id_t>(job.dtrun.pid()), &stopped, WSTOPPED) == 0);
  job.dtrun.Signal(signal);
  job.dtrun.Signal(SIGCONT);
  CHECK(job.dtrun.Wait().exit_code == code);
  CHECK(job.AllGone());
}

}  // namespace
}  // namespace dtrun::testing
