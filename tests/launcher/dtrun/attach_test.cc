// Jobs that outlive their dtrun (--orphan-grace), and the dtrun that takes them over (--attach).

#include <signal.h>

#include <catch2/catch.hpp>
#include <fstream>
#include <iterator>
#include <map>
#include <string>

#include "base/text.h"
#include "tests/launcher/dtrun/process_test.h"

namespace dtrun::testing {
namespace {

using Catch::Matchers::Contains;

// Rank 0 ends last, with code 7, when rank 1 has said all.
const std::string kEnd =
    "echo end; [ $RANK = 0 ] || { touch $TMPDIR/said; exit 0; }; "
    "until [ -e $TMPDIR/said ]; do sleep 0.02; done; sleep 0.5; exit 7";

// A job of two ranks. Each says "begin", waits for the file "go", and runs `script`.
struct HeldJob {
  DtrunTest test;
  Subprocess dtrun;
  std::string name;

  // `meanwhile` runs again and again while a rank waits.
  explicit HeldJob(
      const std::string& grace, const std::string& script = kEnd,
      const std::string& meanwhile = ":")
      : dtrun(Line(grace, script, meanwhile)) {
    REQUIRE(dtrun.WaitForLines(2));
    REQUIRE_THAT(dtrun.err(), Catch::StartsWith("dtrun: job "));
    name = dtrun.err().substr(11, 6);
  }

  Command Line(
      const std::string& grace, const std::string& script, const std::string& meanwhile) const {
    return test.Line(
        {"-np", "2", "--launcher", "local", "--orphan-grace", grace, "sh", "-c",
         "echo begin; while [ ! -e " + test.temp.path() + "/go ]; do sleep 0.02; " + meanwhile +
             "; done; " + script});
  }

  void Go() const { test.temp.Write("go", ""); }
  void LoseDtrun() {
    dtrun.Signal(SIGKILL);
    CHECK(dtrun.Wait().exit_code == 128 + SIGKILL);
  }
  Command AttachLine() const { return test.Line({"--attach", name}); }
  bool HasEnded() const {
    return Soon([this] {
      for (const std::string& entry : test.temp.Entries())
        if (entry.starts_with("dtrun.")) return false;
      return true;
    });
  }
};

TEST_CASE("a held job has the output and the exit code of any other job") {
  HeldJob job("30");
  job.Go();
  const CommandResult result = job.dtrun.Wait();
  CHECK(result.out == "begin\nbegin\nend\nend\n");
  CHECK_THAT(result.err, Contains("dtrun: rank ") && Contains(" exited with code 7\n"));
  CHECK(result.exit_code == 7);
  CHECK(job.HasEnded());
}

TEST_CASE("after kill -9 of dtrun another dtrun gets the rest of the output and the exit code") {
  const bool ended = GENERATE(false, true);  // before the other dtrun comes
  HeldJob job("30");
  job.LoseDtrun();
  if (ended) {
    job.Go();
    REQUIRE(job.HasEnded());
  }
  Subprocess other(job.AttachLine());
  if (!ended) job.Go();
  const CommandResult result = other.Wait();
  CAPTURE(result.err);
  CHECK(result.out == "end\nend\n");
  CHECK_THAT(result.err, Catch::StartsWith("dtrun: took job " + job.name + " over, "));
  CHECK_THAT(result.err, Contains(" exited with code 7\n"));
  CHECK(result.exit_code == 7);
}

TEST_CASE("no byte is lost of a large output while a job has no dtrun") {
  HeldJob job("30", "i=0; while [ $i -lt 20000 ]; do echo line $i of many; i=$((i+1)); done");
  job.LoseDtrun();
  job.Go();
  REQUIRE(job.HasEnded());
  const CommandResult result = Run(job.AttachLine());
  CHECK(result.exit_code == 0);
  CHECK(LineCount(result.out) == 40000);
  std::map<std::string, int> lines;
  for (const std::string& line : base::Split(result.out, '\n')) ++lines[line];
  for (int i = 0; i < 20000; ++i) {
    const int times = lines[base::Text("line ", i, " of many")];
    if (times != 2) FAIL("line " << i << " came " << times << " times");
  }
}

TEST_CASE("a job may lose its dtrun several times and has one at a time") {
  HeldJob job("30", kEnd, "echo tick");
  job.LoseDtrun();
  for (int i = 0; i < 3; ++i) {
    Subprocess other(job.AttachLine());
    REQUIRE(other.WaitForLines(1));
    const CommandResult refused = Run(job.AttachLine());
    CHECK(refused.exit_code == 69);
    CHECK(refused.err == "dtrun: --attach " + job.name + ": the dtrun of this job still runs\n");
    other.Signal(SIGKILL);
    other.Wait();
  }
  Subprocess last(job.AttachLine());
  job.Go();
  CHECK(last.Wait().exit_code == 7);
}

TEST_CASE("without another dtrun a job ends after its grace") {
  HeldJob job("1", "sleep 600");
  job.LoseDtrun();
  job.Go();
  CHECK(job.HasEnded());
  CHECK(Soon([&] {  // until its holder has ended
    std::ifstream sockets("/proc/net/unix");
    const std::string all(std::istreambuf_iterator<char>(sockets), {});
    return all.find(job.name) == std::string::npos;
  }));
  const CommandResult late = Run(job.AttachLine());
  CHECK(late.exit_code == 69);
  CHECK_THAT(late.err, Contains("dtrun: --attach " + job.name + ": found "));
  CHECK(LineCount(late.err) == 1);
}

TEST_CASE("signals to dtrun reach a held job") {
  HeldJob job("30", "exec sleep 600", "echo tick");
  const bool taken_over = GENERATE(false, true);
  if (!taken_over) {
    job.dtrun.Signal(SIGTERM);
    CHECK(job.dtrun.Wait().exit_code == 128 + SIGTERM);
    return;
  }
  job.LoseDtrun();
  Subprocess other(job.AttachLine());
  REQUIRE(other.WaitForLines(1));
  other.Signal(SIGTERM);
  CHECK(other.Wait().exit_code == 128 + SIGTERM);
}

TEST_CASE("a held job ends when the reader of its output goes") {
  const DtrunTest test;
  const CommandResult result = Run(
      {{"bash", "-c",
        DtrunTest::Dtrun() +
            " --tag none --launcher local -np 2 --orphan-grace 60 sh -c 'while :; do echo x; done' "
            "2>/dev/null | head -n 1; echo ${PIPESTATUS[0]}"},
       {{"TMPDIR", test.temp.path()}}});
  CHECK(result.out == "x\n141\n");
}

TEST_CASE("output to a file goes on while a held job has no dtrun") {
  const DtrunTest test;
  const std::string file = test.temp.path() + "/out", name = test.temp.path() + "/name";
  Subprocess dtrun(
      {{"sh", "-c",
        "exec " + DtrunTest::Dtrun() +
            " --tag none --launcher local -np 1 --orphan-grace 30 sh -c 'echo begin; sleep 1; echo "
            "end' >" +
            file + " 2>" + name},
       {{"TMPDIR", test.temp.path()}}});
  const auto text = [](const std::string& path) {
    std::ifstream stream(path);
    return std::string(std::istreambuf_iterator<char>(stream), {});
  };
  REQUIRE(Soon([&] { return text(file) == "begin\n"; }));
  dtrun.Signal(SIGKILL);
  CHECK(Soon([&] { return text(file) == "begin\nend\n"; }));
  const CommandResult result = test.Run({"--attach", text(name).substr(11, 6)});
  CHECK(result.exit_code == 0);
  CHECK(result.out.empty());
}

TEST_CASE("a job on a terminal outlives the terminal and stops and continues with its dtrun") {
  const DtrunTest test;
  const std::string script = test.temp.Write("terminal.py", R"(
import os, pty, re, signal, subprocess, sys, time

def start(program):
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sys.argv[1], [sys.argv[1], "--tag", "none", "--launcher", "local", "-np", "1",
                               "--orphan-grace", "30", "sh", "-c", program])
    return pid, terminal

def read_until(terminal, text):
    out = b""
    while text not in out:
        out += os.read(terminal, 1000)
    return out

pid, terminal = start("test -t 1 && echo begin; sleep 0.5; echo end; exit 5")
name = re.search(rb"job (\w+):", read_until(terminal, b"begin")).group(1).decode()
os.close(terminal)
os.waitpid(pid, 0)
other = subprocess.run([sys.argv[1], "--attach", name], capture_output=True, text=True)
print(other.returncode, other.stdout.split()[0])

pid, terminal = start("i=0; while :; do i=$((i+1)); echo $i; sleep 0.02; done")
read_until(terminal, b"20\r\n")
os.kill(pid, signal.SIGTSTP)
print(os.WIFSTOPPED(os.waitpid(pid, os.WUNTRACED)[1]))
os.kill(pid, signal.SIGCONT)
read_until(terminal, b"60\r\n")
os.write(terminal, b"")
try:
    while os.read(terminal, 1000):
        pass
except OSError:
    pass
print(os.WEXITSTATUS(os.waitpid(pid, 0)[1]))
)");
  const CommandResult result =
      Run({{"/usr/bin/python3", script, DtrunTest::Dtrun()}, {{"TMPDIR", test.temp.path()}}});
  CAPTURE(result.err);
  CHECK(result.out == "5 end\nTrue\n130\n");
}

TEST_CASE("a job dies with its holder") {
  HeldJob job("30", "sleep 600");
  const CommandResult children = Run({{"ps", "-o", "pid=", "--ppid", base::Text(job.dtrun.pid())}});
  const auto holder = static_cast<pid_t>(std::stoi(children.out));
  REQUIRE(kill(holder, SIGKILL) == 0);
  const CommandResult result = job.dtrun.Wait();
  CHECK(result.exit_code == 70);
  CHECK_THAT(result.err, Contains("dtrun: the process dtrun-holder, "));
  CHECK(job.HasEnded());
}

TEST_CASE("wrong uses of --attach and --orphan-grace are one line and exit code 2") {
  const DtrunTest test;
  const std::vector<std::pair<Words, std::string>> cases = {
      {{"--attach", "abc123", "-np", "2", "./train"}, "found the program ./train; expected no "},
      {{"--attach", "../x"}, "--attach ../x: expected the name of a job"},
      {{"--attach"}, "--attach needs a value"},
      {{"-np", "1", "--orphan-grace", "5", "--stdin", "0", "true"},
       "found --stdin 0; expected one of the two"},
      {{"--orphan-grace", "-1", "true"}, "expected a whole number from 0"}};
  for (const auto& [words, message] : cases) {
    const CommandResult result = test.Run(words);
    CAPTURE(result.err);
    CHECK(result.exit_code == 2);
    CHECK(LineCount(result.err) == 1);
    CHECK_THAT(result.err, Contains(message));
  }
}

}  // namespace
}  // namespace dtrun::testing
