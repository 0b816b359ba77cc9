// The end of a job after a failure. Most test cases run with both launchers.

#include <signal.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <thread>

#include "base/text.h"
#include "tests/launcher/dtrun/process_test.h"

namespace dtrun::testing {
namespace {

using namespace std::chrono_literals;

// Script of a rank: prints its process id and that of a child, then waits.
constexpr char kStay[] = "sleep 600 & echo $$; echo $!; wait";

std::string AnyLauncher() { return GENERATE(as<std::string>(), "mpirun", "local"); }

pid_t ChildNamed(pid_t parent, const std::string& name) {
  std::ifstream children(base::Text("/proc/", parent, "/task/", parent, "/children"));
  for (pid_t child; children >> child;) {
    std::string comm;
    std::getline(std::ifstream(base::Text("/proc/", child, "/comm")), comm);
    if (comm == name || (name == "mpirun" && comm == "prterun")) return child;
  }
  throw std::runtime_error(
      "dtrun has no child " + name);  // a signal to -1 would reach all processes
}

// A job of two ranks that wait to be ended.
struct WaitingJob {
  DtrunTest test;
  Subprocess dtrun;
  std::vector<ProcessWatch> processes;

  // Each rank prints `lines` lines, each with a process id.
  explicit WaitingJob(const std::string& launcher, const std::string& script = kStay, int lines = 2)
      : test{.launcher = launcher}, dtrun(test.Line({"-np", "2", "sh", "-c", script})) {
    REQUIRE(dtrun.WaitForLines(2 * lines));
    std::istringstream pids(dtrun.out());
    for (pid_t pid; pids >> pid;) processes.emplace_back(pid);
    for (const ProcessWatch& process : processes) REQUIRE(process.found());
  }

  // The process that started the ranks: mpirun or dtrun_local.
  pid_t Engine() const {
    return ChildNamed(dtrun.pid(), test.launcher == "mpirun" ? "mpirun" : "dtrun_local");
  }

  bool AllGone() const {
    return std::all_of(processes.begin(), processes.end(), [](const ProcessWatch& process) {
      return process.Ends(2s);
    });
  }
};

// Script: rank `last` continues when all other ranks run. The other ranks wait.
std::string OthersAreThere(int last) {
  const std::string here = "$TMPDIR/here.";
  std::string script =
      base::Text("[ $RANK = ", last, " ] || { : >", here, "$RANK; exec sleep 600; }; ");
  for (int rank = 0; rank < last; ++rank)
    script += base::Text("until rm ", here, rank, " 2>/dev/null; do sleep 0.01; done; ");
  return script;
}

TEST_CASE("dtrun passes on the exit code of a rank and names the rank") {
  const DtrunTest test = {.launcher = AnyLauncher()};
  const int code = GENERATE(1, 3, 66, 255);
  const CommandResult result =
      test.RunScript(2, OthersAreThere(1) + base::Text("echo why >&2; exit ", code));
  CHECK(result.exit_code == code);
  CHECK_THAT(
      result.err, Catch::StartsWith(base::Text(
                      "why\ndtrun: rank 1 on localhost exited with code ", code, "\n")) &&
                      Catch::EndsWith("dtrun:   rank 0 was ended because of it\n"));
  CHECK(LineCount(result.err) == 4);
}

TEST_CASE("a rank killed by a signal is reported with the signal") {
  const DtrunTest test = {.launcher = AnyLauncher()};
  const auto [name, code] = GENERATE(
      std::pair<std::string, int>("SEGV", 139), std::pair<std::string, int>("ABRT", 134),
      std::pair<std::string, int>("TERM", 143), std::pair<std::string, int>("KILL", 137));
  const CommandResult result = test.RunScript(3, OthersAreThere(2) + "kill -" + name + " $$");
  CHECK(result.exit_code == code);
  CHECK(LineCount(result.err) == 3);
  CHECK_THAT(
      result.err, Catch::StartsWith("dtrun: rank 2 on localhost was killed by SIG" + name + "\n") &&
                      Catch::EndsWith("dtrun:   ranks 0 and 1 were ended because of it\n"));
}

TEST_CASE("if all ranks fail then one of them is named") {
  const DtrunTest test = {.launcher = AnyLauncher()};
  const CommandResult result = test.RunScript(4, "exit 9");
  CHECK(result.exit_code == 9);
  CHECK_THAT(
      result.err, Catch::StartsWith("dtrun: rank ") && Catch::Contains(" exited with code 9\n"));
}

TEST_CASE("a program with a missing interpreter is reported once with exit code 127") {
  const DtrunTest test = {.launcher = AnyLauncher()};
  const std::string interpreter = test.temp.Write("shell", "#!/no/such/shell\n", 0755);
  const std::string script = test.temp.Write("script", "#!" + interpreter + "\n", 0755);
  const CommandResult result = test.Run({"-np", "2", script});
  CHECK(result.exit_code == 127);
  const size_t first = result.err.find("could not run its program");
  CHECK(first != std::string::npos);
  CHECK(result.err.find("could not run its program", first + 1) == std::string::npos);
}

TEST_CASE("if mpirun starts no rank then the message points to --verbose") {
  const DtrunTest test;
  const CommandResult result = test.Run({"-np", "1", "--mpi-args", "--no-such-option", "true"});
  CHECK(result.exit_code == 69);
  CHECK_THAT(result.err, Catch::Contains("--verbose"));
}

// A stand-in for mpirun prints two messages and then runs the real mpirun. The first message is
// Open MPI's harmless warning about an ssh that was faster than mpirun.
TEST_CASE("mpirun's messages are shown without harmless warnings unless --verbose is set") {
  DtrunTest test;
  const std::string real = base::Split(Run({{"which", "mpirun"}}).out, '\n')[0];
  test.temp.Write(
      "mpirun",
      base::Text(
          "#!/bin/sh\n"
          "case $1 in --version) exec ",
          real,
          " --version ;; esac\n"
          "echo '[h1:812] plm:rsh: Warning: setpgid(831,831) failed in parent with "
          "errno=Permission denied(13)' >&2\n"
          "echo 'a word of mpirun' >&2\n"
          "exec ",
          real, " \"$@\"\n"),
      0755);
  test.environment = {{"PATH", test.temp.path() + ":" + std::getenv("PATH")}};
  const bool verbose = GENERATE(false, true);
  Words words = {"-np", "2", "sh", "-c", "echo from $RANK >&2"};
  if (verbose) words.insert(words.begin(), "--verbose");
  const CommandResult result = test.Run(words);
  CAPTURE(result.err);
  CHECK(result.exit_code == 0);
  for (const char* line : {"a word of mpirun\n", "from 0\n", "from 1\n"})
    CHECK_THAT(result.err, Catch::Contains(line));
  CHECK((result.err.find("setpgid") != std::string::npos) == verbose);
}

TEST_CASE("a signal to dtrun ends the whole job") {
  WaitingJob job(AnyLauncher());
  const auto [signal, code] =
      GENERATE(std::pair(SIGINT, 130), std::pair(SIGTERM, 143), std::pair(SIGHUP, 129));
  job.dtrun.Signal(signal);
  const CommandResult result = job.dtrun.Wait();
  CHECK(result.exit_code == code);
  CHECK(LineCount(result.err) == 1);
  for (const ProcessWatch& process : job.processes) CHECK(process.Ends(0s));
  CHECK(job.test.temp.Entries().empty());
}

TEST_CASE("ranks have ten seconds to save after SIGTERM even if another rank ends first") {
  const std::string save = "echo saved >&2; exit 0";
  WaitingJob job(
      AnyLauncher(),
      "trap 'kill $!; [ $RANK = 0 ] && exit 0; sleep 2; " + save + "' TERM; " + kStay);
  const auto begin = std::chrono::steady_clock::now();
  job.dtrun.Signal(SIGTERM);
  const CommandResult result = job.dtrun.Wait();
  CHECK(result.exit_code == 143);
  CHECK_THAT(result.err, Catch::Contains("saved\n"));
  CHECK(std::chrono::steady_clock::now() - begin < 9s);
  CHECK(job.AllGone());
  CHECK(job.test.temp.Entries().empty());
}

TEST_CASE("a signal to mpirun is not reported as MPI_Abort") {
  WaitingJob job("mpirun");
  kill(job.Engine(), GENERATE(SIGTERM, SIGINT, SIGHUP));
  const CommandResult result = job.dtrun.Wait();
  CHECK(result.exit_code == 70);
  CHECK(
      result.err ==
      "dtrun: mpirun was told to end by a signal from outside; its ranks were ended\n");
  CHECK(job.AllGone());
}

TEST_CASE("a stopped helper process is continued and the job goes on") {
  const DtrunTest test = {.launcher = AnyLauncher()};
  const std::string helper = GENERATE(as<std::string>(), "engine", "wrapper", "agent", "keeper");
  CAPTURE(helper);
  Subprocess dtrun(test.Line({"-np", "2", "sh", "-c", "echo up; sleep 1; echo done"}));
  REQUIRE(dtrun.WaitForLines(2));
  const pid_t engine =
      ChildNamed(dtrun.pid(), test.launcher == "mpirun" ? "mpirun" : "dtrun_local");
  const pid_t process = helper == "engine"    ? engine
                        : helper == "wrapper" ? ChildNamed(engine, "dtrun_rank")
                        : helper == "agent"   ? ChildNamed(dtrun.pid(), "dtrun_agent")
                                              : ChildNamed(dtrun.pid(), "dtrun-keeper");
  REQUIRE(process > 0);
  kill(process, SIGSTOP);
  const CommandResult result = dtrun.Wait();
  CHECK(result.exit_code == 0);
  CHECK_THAT(result.out, Catch::EndsWith("done\ndone\n"));
  CHECK(
      (result.err.find(" was stopped by a signal from outside; dtrun continued the process\n") !=
       std::string::npos) == (helper == "engine"));
  CHECK(test.temp.Entries().empty());
}

TEST_CASE("child processes of a rank may outlive the rank but end with the job") {
  const DtrunTest test = {.launcher = AnyLauncher()};
  const CommandResult ended =
      test.RunScript(2, "[ $RANK = 0 ] && { (sleep 0.2; exit 3) & exit 0; }; sleep 1; echo done");
  CHECK(ended.exit_code == 0);
  CHECK(ended.out == "done\n");
  const CommandResult left = test.RunScript(1, "env -i setsid sleep 600 & echo $!");
  CHECK(kill(std::stoi(left.out), 0) != 0);

  Subprocess dtrun(test.Line({"-np", "1", "sh", "-c", "env -i setsid sleep 600 & echo $!; wait"}));
  REQUIRE(dtrun.WaitForLines(1));
  const ProcessWatch child(std::stoi(dtrun.out()));
  std::this_thread::sleep_for(1s);
  dtrun.Signal(SIGKILL);
  CHECK(child.Ends(5s));
}

TEST_CASE("dtrun does not wait for a killed keeper and removes all files") {
  WaitingJob job(AnyLauncher());
  kill(ChildNamed(job.dtrun.pid(), "dtrun-keeper"), SIGKILL);
  job.dtrun.Signal(SIGTERM);
  CHECK(job.dtrun.Wait().exit_code == 143);
  CHECK(job.test.temp.Entries().empty());
}

TEST_CASE("a second signal ends the job even if mpirun does not react") {
  WaitingJob job(AnyLauncher());
  REQUIRE(job.Engine() > 0);
  kill(job.Engine(), SIGSTOP);
  job.dtrun.Signal(SIGINT);
  job.dtrun.Signal(SIGTERM);
  CHECK(job.dtrun.Wait().exit_code == 130);
  for (const ProcessWatch& process : job.processes) CHECK(process.Ends(0s));
  CHECK(job.test.temp.Entries().empty());
}

TEST_CASE("killing dtrun leaves no rank and no file") {
  WaitingJob job(AnyLauncher());
  const ProcessWatch keeper(ChildNamed(job.dtrun.pid(), "dtrun-keeper"));
  REQUIRE(keeper.found());
  job.dtrun.Signal(SIGKILL);
  CHECK(job.dtrun.Wait().exit_code == 137);
  CHECK(job.AllGone());
  CHECK(keeper.Ends(10s));
  CHECK(job.test.temp.Entries().empty());
}

// A rank prints the job's folder in memory, then kills the job's keeper, a child of dtrun. $dtrun
// is dtrun's process id.
const std::string kKillKeeper =
    "up() { ps -o ppid= -p $1 | tr -d ' '; }; dtrun=$(up $(up $PPID)); "
    "echo ${DTRUN_FLIGHT_FOLDER%/flight}; pkill -KILL -P $dtrun dtrun-keeper; ";

TEST_CASE("if the keeper is killed then the job still leaves no file") {
  const DtrunTest test = {.launcher = GENERATE(as<std::string>(), "mpirun", "local")};
  const CommandResult result = test.RunScript(1, kKillKeeper);
  CHECK(result.exit_code == 0);
  CHECK_FALSE(std::filesystem::exists(result.out.substr(0, result.out.find('\n'))));
  CHECK(test.temp.Entries().empty());
}

TEST_CASE("the user's next job removes the files of a job with a killed dtrun and keeper") {
  const DtrunTest test = {.launcher = GENERATE(as<std::string>(), "mpirun", "local")};
  Subprocess running(test.Line({"-np", "1", "sh", "-c", "echo up; exec sleep 60"}));
  REQUIRE(running.WaitForLines(1));
  const CommandResult killed =
      test.RunScript(1, kKillKeeper + "sleep 2; kill -KILL $dtrun; sleep 60");
  const std::string memory = killed.out.substr(0, killed.out.find('\n'));
  CHECK(killed.exit_code == 137);
  CHECK(test.temp.Entries().size() == 2);
  CHECK(std::filesystem::exists(memory));
  // The next job keeps the folder of the running job and a folder with a similar name.
  std::filesystem::create_directory(test.temp.path() + "/dtrun.other");
  CHECK(test.Run({"-np", "1", "true"}).exit_code == 0);
  CHECK(test.temp.Entries().size() == 2);
  CHECK_FALSE(std::filesystem::exists(memory));
  running.Signal(SIGTERM);
  running.Wait();
  CHECK(test.temp.Entries() == Words{"dtrun.other"});
}

TEST_CASE("killing the launch engine leaves no rank and no file and is reported") {
  WaitingJob job(AnyLauncher());
  REQUIRE(job.Engine() > 0);
  kill(job.Engine(), SIGKILL);
  const CommandResult result = job.dtrun.Wait();
  CHECK(result.exit_code == 70);
  CHECK(LineCount(result.err) == 1);
  CHECK_THAT(result.err, Catch::EndsWith(" was killed by SIGKILL; its ranks were ended\n"));
  for (const ProcessWatch& process : job.processes) CHECK(process.Ends(0s));
  CHECK(job.test.temp.Entries().empty());
}

TEST_CASE("a crash of mpirun is reported in one line and ranks keep their own stack traces") {
  WaitingJob job("mpirun");
  kill(job.Engine(), SIGSEGV);
  const CommandResult result = job.dtrun.Wait();
  CHECK(result.exit_code == 70);
  CHECK(result.err == "dtrun: mpirun was killed by SIGSEGV; its ranks were ended\n");
  CHECK(job.test.RunScript(1, "echo ${OMPI_MCA_opal_signal-default}").out == "default\n");
}

TEST_CASE("ranks die with the launch engine even if dtrun is stopped") {
  WaitingJob job(AnyLauncher(), "echo $$; exec sleep 600", 1);
  const pid_t engine = job.Engine();
  REQUIRE(engine > 0);
  job.dtrun.Signal(SIGSTOP);
  kill(engine, SIGKILL);
  CHECK(job.AllGone());
  job.dtrun.Signal(SIGCONT);
  CHECK(job.dtrun.Wait().exit_code == 70);
}

TEST_CASE("killing the wrapper of a rank ends the job") {
  WaitingJob job(AnyLauncher());
  const pid_t wrapper = ChildNamed(job.Engine(), "dtrun_rank");
  REQUIRE(wrapper > 0);
  kill(wrapper, SIGKILL);
  CHECK(job.dtrun.Wait().exit_code == 137);
  CHECK(job.AllGone());
}

TEST_CASE("an unwritable flight record file is refused before the ranks start") {
  const DtrunTest test;
  const CommandResult result = test.Run(
      {"-np", "2", "--flight-record", test.temp.path() + "/no/such/file", "echo", "started"});
  CHECK(result.exit_code == 73);
  CHECK(result.out == "");
  CHECK(LineCount(result.err) == 1);
  CHECK_THAT(result.err, Catch::Contains(test.temp.path() + "/no/such/file"));
  CHECK(test.temp.Entries().empty());
}

TEST_CASE("a failure of the job outweighs a failure to write the flight record file") {
  const DtrunTest test;
  const Words line = {"-np", "2", "--flight-record", "/dev/full", "sh", "-c"};
  const auto run = [&](const std::string& script) {
    Words words = line;
    words.push_back(script);
    const CommandResult result = test.Run(words);
    CHECK_THAT(result.err, Catch::Contains("cannot write /dev/full"));
    return result.exit_code;
  };
  CHECK(run("exit 0") == 73);
  CHECK(run("exit 5") == 5);
}

TEST_CASE("damaged flight records never break the failure report") {
  const DtrunTest test;
  const std::string damage = GENERATE(
      as<std::string>(), "echo garbage > $file", "head -c 40000 /dev/zero > $file", "mkfifo $file",
      "mkdir $file", "ln -s /dev/zero $file", "rm -r $DTRUN_FLIGHT_FOLDER");
  const std::string file = test.temp.path() + "/records.json";
  const CommandResult result = test.Run(
      {"-np", "1", "--flight-record", file, "sh", "-c",
       "[ -d $DTRUN_FLIGHT_FOLDER ] || exit 4; file=$DTRUN_FLIGHT_FOLDER/0; " + damage +
           "; exit 3"});
  CHECK(result.exit_code == 3);
  CHECK_THAT(result.err, Catch::StartsWith("dtrun: rank 0 on localhost exited with code 3\n"));
  CHECK(LineCount(result.err) == 2);
  CHECK(test.temp.Entries() == Words{"records.json"});
}

TEST_CASE("ranks without dtrun's library have no flight record and the file says so") {
  const DtrunTest test;
  const std::string file = test.temp.path() + "/records.json";
  CHECK(test.Run({"-np", "2", "--flight-record", file, "true"}).exit_code == 0);
  std::stringstream text;
  text << std::ifstream(file).rdbuf();
  CHECK_THAT(
      text.str(),
      Catch::Contains("\"rank\": 1") && Catch::Contains("no record") && Catch::EndsWith("]\n"));
  CHECK(test.temp.Entries() == Words{"records.json"});
}

TEST_CASE("--timeout ends the job with code 124") {
  const DtrunTest test = {.launcher = AnyLauncher()};
  const CommandResult result = test.Run({"-np", "2", "--timeout", "1", "sleep", "50"});
  CHECK(result.exit_code == 124);
  CHECK(result.err == "dtrun: ended after 1 s (--timeout)\n");
  CHECK(test.Run({"-np", "1", "--timeout", "50", "sh", "-c", "exit 3"}).exit_code == 3);
}

TEST_CASE("--start-timeout ends only a job with hosts that do not answer") {
  const DtrunTest test;
  const std::string agent = test.temp.Write("agent", "#!/bin/sh\nexec sleep 50\n", 0755);
  const CommandResult result = test.Run(
      {"-H", "localhost:1,far:1", "--start-timeout", "1", "--mpi-args",
       "--mca plm_rsh_agent " + agent, "true"});
  CHECK(result.exit_code == 69);
  CHECK(result.err == "dtrun: no answer from far within 1 s (--start-timeout)\n");
  CHECK(test.Run({"-np", "2", "--start-timeout", "1", "sleep", "1.5"}).exit_code == 0);
}

}  // namespace
}  // namespace dtrun::testing
