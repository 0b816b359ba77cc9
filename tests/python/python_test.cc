// The Python package on real ranks, with Debian's Python and, if torchrun is in PATH, with the
// PyTorch of that.

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "base/text.h"
#include "tests/support/subprocess.h"
#include "tests/support/text.h"

namespace {

namespace fs = std::filesystem;
using Catch::Matchers::Contains;
using dtrun::base::Split;
using dtrun::testing::Command;
using dtrun::testing::CommandResult;
using dtrun::testing::Run;
using dtrun::testing::TemporaryFolder;
using Words = std::vector<std::string>;

constexpr char kDebians[] = "/usr/bin/python3";

// Whether `python` lacks the package. If so, prints the line that counts the test as skipped.
bool Lacks(const std::string& python, const std::string& package) {
  if (Run({{python, "-c", "import " + package}}).exit_code == 0) return false;
  std::printf("SKIPPED: %s has no package %s\n", python.c_str(), package.c_str());
  return true;
}

// The Python beside the first torchrun in PATH; "" without one.
std::string PythonOfTorchrun() {
  const CommandResult found = Run({{"sh", "-c", "command -v torchrun"}});
  if (found.exit_code != 0) return "";
  return fs::path(found.out.substr(0, found.out.find('\n'))).parent_path() / "python3";
}

// Runs a program of this folder as a job.
CommandResult RunJob(
    const Words& options, const std::string& python, const std::string& program,
    const std::string& victim = "", const std::string& folder = ".") {
  const std::string here = fs::current_path();
  Command command{.argv = {"sh", "-c", "cd \"$0\" && exec \"$@\"", folder}};
  command.argv.insert(command.argv.end(), {here + "/launcher/dtrun", "--tag", "none"});
  command.argv.insert(command.argv.end(), options.begin(), options.end());
  command.argv.insert(command.argv.end(), {python, fs::path(here + "/tests/python") / program});
  command.environment = {
      {"DTRUN_LIBRARY", here + "/runtime/libdtrun.so.0"},
      {"PYTHONPATH", here + "/python"},
      {"PYTHONDONTWRITEBYTECODE", "1"},
      {"VICTIM", victim}};
  return Run(command);
}

void CheckCases(
    const std::string& python, const std::string& program, int ranks, const std::string& launcher,
    int cases) {
  const CommandResult result =
      RunJob({"--launcher", launcher, "-np", std::to_string(ranks)}, python, program);
  CAPTURE(python, ranks, launcher, result.err, result.out);
  CHECK(result.exit_code == 0);
  const Words lines = Split(result.out, '\n');
  CHECK(std::count(lines.begin(), lines.end(), std::to_string(cases) + " cases passed") == ranks);
}

TEST_CASE("collectives on NumPy arrays give the right values and errors on 1 to 3 ranks") {
  if (Lacks(kDebians, "numpy")) return;
  for (int ranks = 1; ranks <= 3; ++ranks)
    CheckCases(kDebians, "numpy_cases.py", ranks, "local", 20);
  CheckCases(kDebians, "numpy_cases.py", 2, "mpirun", 20);
}

TEST_CASE("what Horovod's users rely on works with Debian's PyTorch") {
  if (Lacks(kDebians, "torch")) return;
  for (int ranks = 2; ranks <= 3; ++ranks)
    CheckCases(kDebians, "torch_cases.py", ranks, "local", 37);
}

TEST_CASE("what Horovod's users rely on works with the PyTorch of torchrun") {
  const std::string python = PythonOfTorchrun();
  if (python.empty()) {
    std::printf("SKIPPED: torchrun is not in PATH\n");
    return;
  }
  if (Lacks(python, "torch")) return;
  for (const int ranks : {1, 2, 4}) CheckCases(python, "torch_cases.py", ranks, "local", 37);
}

TEST_CASE("a training loses a rank and ends with the parameters of an undisturbed one") {
  if (Lacks(kDebians, "torch")) return;
  const auto end = [](const std::string& victim) {
    const TemporaryFolder folder;
    const CommandResult result = RunJob(
        {"--restarts", "2", "-np", "3"}, kDebians, "elastic_training.py", victim, folder.path());
    CAPTURE(victim, result.err, result.out);
    CHECK(result.exit_code == 0);
    const std::string calls = victim.empty() ? "[0]" : "[0, 20]";
    CHECK_THAT(result.out, Contains("called at " + calls + ", sum "));
    if (!victim.empty()) CHECK_THAT(result.out, Contains("called at [20], sum "));
    Words sums;
    for (const std::string& line : Split(result.out, '\n'))
      if (!line.empty()) sums.push_back(line.substr(line.find("sum ")));
    CHECK(sums.size() == 3);
    CHECK(std::equal(sums.begin() + 1, sums.end(), sums.begin()));
    return sums.front();
  };
  const std::string undisturbed = end("");
  CHECK(end("0") == undisturbed);
  CHECK(end("2") == undisturbed);
}

TEST_CASE("a training that mpirun starts again takes its last commit from the host's memory") {
  if (Lacks(kDebians, "torch")) return;
  const auto train = [](const std::string& victim) {
    const TemporaryFolder folder;
    const CommandResult result = RunJob(
        {"--launcher", "mpirun", "--restarts", "2", "-np", "3"}, kDebians, "elastic_training.py",
        victim, folder.path());
    CAPTURE(victim, result.err, result.out);
    CHECK(result.exit_code == 0);
    CHECK_THAT(
        result.out, Contains(victim.empty() ? "called at [0], sum " : "called at [20], sum "));
    return result.out.substr(result.out.find("sum "), 12);
  };
  CHECK(train("1") == train(""));
}

// The blocks of Python on the page, in order.
Words BlocksOfPage() {
  const std::string page = dtrun::testing::ReadText("docs/guides/python.md"), begin = "```python\n";
  Words blocks;
  for (size_t at = page.find(begin); at != std::string::npos; at = page.find(begin, at)) {
    at += begin.size();
    blocks.push_back(page.substr(at, page.find("```\n", at) - at));
  }
  return blocks;
}

TEST_CASE("the programs of the page run") {
  if (Lacks(kDebians, "torch")) return;
  const Words blocks = BlocksOfPage();
  REQUIRE(blocks.size() == 3);
  const Words shown = {
      "2 ranks, loss below 0.2: True\n", "", "[0.5 0.5 0.5] (3, 2)\n[0.5 0.5 0.5] (3, 2)\n"};
  for (const size_t i : {0u, 2u}) {
    const TemporaryFolder folder;
    const std::string program = folder.Write("train.py", blocks[i]);
    const CommandResult result = RunJob({"--launcher", "local", "-np", "2"}, kDebians, program);
    CAPTURE(result.err);
    CHECK(result.exit_code == 0);
    CHECK(result.out == shown[i]);
  }
}

// Runs a program that calls dtrun.run, in a folder with the module `work`.
CommandResult RunCaller(const std::string& program) {
  const std::string here = fs::current_path();
  const TemporaryFolder folder;
  folder.Write(
      "work.py",
      "import dtrun\n"
      "def place(a, b=0):\n  dtrun.init()\n  return (dtrun.rank(), dtrun.size(), a, b)\n"
      "def fail():\n  dtrun.init()\n  if dtrun.rank() == 1: raise KeyError('x')\n");
  Command command{
      .argv = {"sh", "-c", "cd \"$0\" && exec \"$@\"", folder.path(), kDebians, "program.py"}};
  folder.Write("program.py", program);
  command.environment = {
      {"DTRUN_LIBRARY", here + "/runtime/libdtrun.so.0"},
      {"PYTHONPATH", here + "/python"},
      {"PYTHONDONTWRITEBYTECODE", "1"},
      {"PATH", here + "/launcher:" + std::getenv("PATH")}};
  return Run(command);
}

TEST_CASE("dtrun.run returns what a function returns on each rank") {
  const std::string how =
      GENERATE("options=['--launcher', 'local']", "use_mpi=True", "hosts='localhost:3', verbose=1");
  const CommandResult result = RunCaller(
      "import dtrun, work\nprint(dtrun.run(work.place, ('x',), {'b': 4}, np=3, " + how + "))\n");
  CAPTURE(result.err);
  CHECK(result.out == "[(0, 3, 'x', 4), (1, 3, 'x', 4), (2, 3, 'x', 4)]\n");
}

TEST_CASE("dtrun.run calls a function of the program itself with cloudpickle, or says so") {
  const CommandResult result = RunCaller(BlocksOfPage().at(1));
  CAPTURE(result.err);
  if (Lacks(kDebians, "cloudpickle")) {
    CHECK_THAT(result.err, Contains("run(train): ranks cannot import a function of the program"));
    return;
  }
  CHECK(result.out == "['rank 0 of 2 at 0.1', 'rank 1 of 2 at 0.1']\n");
}

TEST_CASE("dtrun.run ends with an error that names what is wrong") {
  const CommandResult result = RunCaller(
      "import dtrun, work\n"
      "for call in (lambda: dtrun.run(work.fail, np=2), lambda: dtrun.run(3), \n"
      "             lambda: dtrun.run(work.place, hosts='a:1'), lambda: dtrun.run(work.place, "
      "np=0)):\n"
      "  try: call()\n"
      "  except dtrun.Error as error: print(type(error).__name__, error, flush=True)\n");
  CAPTURE(result.err);
  CHECK_THAT(result.err, Contains("KeyError: 'x'"));
  CHECK(
      result.out ==
      "Error run(fail): the job ended with exit code 1; its output says why\n"
      "InvalidArgument run(3): expected a function\n"
      "InvalidArgument run(hosts=...): expected folder=, a folder that all hosts share\n"
      "Error run(place): the job ended with exit code 2; its output says why\n");
}

TEST_CASE("an error has the ranks that did not come, and their hosts") {
  const TemporaryFolder folder;
  folder.Write(
      "program.py",
      "import dtrun, dtrun.numpy, time\ndtrun.init(timeout_s=2, stall_warning_s=1)\n"
      "if dtrun.rank() == 1: time.sleep(6)\n"
      "else:\n"
      "  try: dtrun.numpy.barrier()\n"
      "  except dtrun.Timeout as error: print(error.ranks, error.hosts, flush=True)\n");
  const CommandResult result =
      RunJob({"--launcher", "local", "-np", "2"}, kDebians, folder.path() + "/program.py");
  CAPTURE(result.err);
  CHECK_THAT(result.out, Catch::StartsWith("(1,) ('localhost',)\n"));
}

TEST_CASE("a rank that ends by an exception ends the job with its traceback") {
  const TemporaryFolder folder;
  folder.Write(
      "program.py",
      "import dtrun\ndtrun.init()\nif dtrun.rank() == 1: raise KeyError('x')\n"
      "import time\ntime.sleep(60)\n");
  const CommandResult result =
      RunJob({"--launcher", "local", "-np", "2"}, kDebians, folder.path() + "/program.py");
  CAPTURE(result.out);
  CHECK(result.exit_code == 1);
  CHECK_THAT(
      result.err,
      Contains("KeyError: 'x'") && Contains("dtrun: rank 1 on localhost exited with code 1\n"));
}

TEST_CASE("a missing library is named with what to do") {
  Command command{.argv = {kDebians, "-c", "import dtrun"}};
  command.environment = {
      {"DTRUN_LIBRARY", "/nonexistent/libdtrun.so.0"},
      {"PYTHONPATH", "python"},
      {"PYTHONDONTWRITEBYTECODE", "1"}};
  const CommandResult result = Run(command);
  CHECK(result.exit_code == 1);
  CHECK_THAT(
      result.err, Contains("ImportError: /nonexistent/libdtrun.so.0 cannot be loaded: ") &&
                      Contains("DTRUN_LIBRARY"));
}

}  // namespace
