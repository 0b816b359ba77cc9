// Lost ranks that are started again (--restarts), with real processes and real signals.

#include <signal.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <fstream>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/ranks/dtrun_job.h"
#include "tests/support/json.h"
#include "tests/support/subprocess.h"

namespace {

using dtrun::testing::Command;
using dtrun::testing::CommandResult;
using dtrun::testing::kDtrun;
using dtrun::testing::ParseJson;
using dtrun::testing::Run;
using dtrun::testing::RunJob;
using dtrun::testing::Subprocess;
using dtrun::testing::TemporaryFolder;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using Words = std::vector<std::string>;

std::string Read(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

pid_t NumberIn(const std::string& path) {
  pid_t number = -1;
  std::ifstream(path) >> number;
  return number;
}

// The process that has started `process`.
pid_t ParentOf(pid_t process) {
  std::ifstream status("/proc/" + std::to_string(process) + "/status");
  for (std::string word; status >> word;) {
    pid_t parent = -1;
    if (word == "PPid:" && status >> parent) return parent;
  }
  return -1;
}

// A running job of tests/ranks/elastic, or of a program that takes the same arguments.
class ElasticJob {
 public:
  explicit ElasticJob(
      int steps, Words options = {}, bool slow = false,
      const std::string& program = "tests/ranks/elastic", const std::string& file = "") {
    if (slow) folder_.Write("slow", "");
    if (!file.empty()) folder_.Write(file, "");
    Command command{.argv = {kDtrun, "--tag", "none", "-np", "4"}};
    command.timeout = std::chrono::seconds(300);
    command.argv.insert(command.argv.end(), options.begin(), options.end());
    command.argv.insert(command.argv.end(), {program, std::to_string(steps), folder_.path()});
    job_.emplace(command);
  }

  int step() const { return static_cast<int>(NumberIn(folder_.path() + "/step")); }
  // Never a number that kill() takes for many processes: the file is empty while a rank writes it.
  pid_t process(int rank) const {
    const auto until = Clock::now() + std::chrono::seconds(10);
    for (;;) {
      const pid_t number = NumberIn(folder_.path() + "/pid." + std::to_string(rank));
      if (number > 1) return number;
      if (Clock::now() > until) FAIL("rank " << rank << " has not written its process");
      std::this_thread::sleep_for(milliseconds(2));
    }
  }
  bool AwaitStep(int step) const {
    const auto until = Clock::now() + std::chrono::seconds(60);
    while (this->step() < step && Clock::now() < until)
      std::this_thread::sleep_for(milliseconds(2));
    return this->step() >= step;
  }
  CommandResult Wait() { return job_->Wait(); }
  bool Has(const std::string& file) const {
    return std::ifstream(folder_.path() + "/" + file).good();
  }
  // The lost ranks in the error of a survivor, and its operation.
  std::string Lost(int rank) const {
    return Read(folder_.path() + "/lost." + std::to_string(rank));
  }

 private:
  TemporaryFolder folder_;
  std::optional<Subprocess> job_;
};

const std::string& UndisturbedResult() {
  static const std::string result = ElasticJob(300).Wait().out;
  return result;
}

TEST_CASE("a job that loses a rank to SIGKILL ends with the result of one that was left alone") {
  const int rank = GENERATE(0, 3);
  const bool wrapper = GENERATE(false, true);
  CAPTURE(rank, wrapper);
  CHECK(UndisturbedResult().find("each example 6 times") != std::string::npos);
  TemporaryFolder folder;
  ElasticJob job(300, {"--restarts", "5", "--report-json", folder.path() + "/report"});
  REQUIRE(job.AwaitStep(50));
  const pid_t process = job.process(rank);
  REQUIRE(kill(wrapper ? ParentOf(process) : process, SIGKILL) == 0);
  const CommandResult result = job.Wait();
  CAPTURE(result.err);
  CHECK(result.exit_code == 0);
  CHECK(result.out == UndisturbedResult());
  CHECK(result.err.find("dtrun: rank " + std::to_string(rank) + " on ") == 0);
  CHECK(result.err.find("; the rank is started again (restart 1 of 5)\n") != std::string::npos);
  CHECK(result.err.find("dtrun: all 4 ranks go on, ") != std::string::npos);
  const nlohmann::json report = ParseJson(Read(folder.path() + "/report"));
  REQUIRE(report.at("losses").size() == 1);
  CHECK(report.at("losses")[0].at("ranks") == nlohmann::json{rank});
  CHECK(report.at("losses")[0].at("recovery_s").is_number());
  CHECK(report.at("exit_code") == 0);
  for (int other = 0; other < 4; ++other)
    if (other != rank) CHECK(job.Lost(other) == std::to_string(rank) + " all_reduce");
}

TEST_CASE("faults on purpose are made at their step, and every report says so") {
  TemporaryFolder folder;
  ElasticJob job(
      300,
      {"--restarts", "5", "--inject",
       "kill rank 1 at step 50; stop rank 2 for 0.3s at step 80; slow rank 0 by 2x",
       "--report-json", folder.path() + "/report", "--metrics-file", folder.path() + "/metrics"});
  const CommandResult result = job.Wait();
  CAPTURE(result.err);
  CHECK(result.exit_code == 0);
  CHECK(result.out == UndisturbedResult());
  CHECK(Read(folder.path() + "/metrics").find("\ndtrun_job_losses_total 1\n") != std::string::npos);
  CHECK(result.err.find("dtrun: --inject: kill rank 1 at step 50\n") != std::string::npos);
  CHECK(result.err.find("dtrun: rank 1 on ") != std::string::npos);
  CHECK(result.err.find("dtrun: 3 faults were made on purpose (--inject)\n") != std::string::npos);
  const nlohmann::json report = ParseJson(Read(folder.path() + "/report"));
  CHECK(report.at("injected").size() == 3);
  CHECK(report.at("losses").size() == 1);
}

TEST_CASE("the timeline of a job with a lost rank has all processes of each rank and the loss") {
  const std::string launcher = GENERATE("local", "mpirun");
  CAPTURE(launcher);
  TemporaryFolder folder;
  const std::string path = folder.path() + "/trace";
  ElasticJob job(
      100, {"--launcher", launcher, "--restarts", "5", "--inject", "kill rank 1 at step 50",
            "--timeline", path});
  const CommandResult result = job.Wait();
  CAPTURE(result.err);
  REQUIRE(result.exit_code == 0);
  const CommandResult found =
      Run(Command{.argv = {"/usr/bin/python3", "tests/support/check_trace.py", path}});
  CAPTURE(found.out, found.err);
  REQUIRE(found.exit_code == 0);
  const auto timeline = ParseJson(Read(path));
  std::set<std::pair<int, int>> epochs;  // each rank's
  std::map<int, std::set<int>> processes;
  for (const auto& rank : timeline["otherData"]["ranks"]) {
    epochs.emplace(rank["rank"], rank["epoch"]);
    processes[rank["rank"]].insert(rank["pid"].get<int>());
  }
  CHECK(epochs.size() == 8);
  CHECK(processes[1].size() == 2);
  CHECK(processes[0].size() == (launcher == "local" ? 1 : 2));
  int losses = 0;
  for (const auto& event : timeline["traceEvents"]) {
    if (event.value("cat", "") != "change") continue;
    ++losses;
    CHECK(event["name"].get<std::string>().find("rank 1 on ") == 0);
    CHECK(event["args"]["ranks"] == nlohmann::json{1});
    CHECK(event["dur"] > 0);
  }
  CHECK(losses == 1);
}

TEST_CASE("faults for which a job is too short are counted at its end") {
  ElasticJob job(20, {"--inject", "kill rank 1 at step 50; kill rank 0 at 900s"});
  const CommandResult result = job.Wait();
  CHECK(result.exit_code == 0);
  CHECK(result.err == "dtrun: no fault was made on purpose (--inject): the job ended before\n");
}

TEST_CASE("without restarts left, a job goes on with fewer ranks and the same result") {
  const std::string launcher = GENERATE("local", "mpirun");
  CAPTURE(launcher);
  ElasticJob job(300, {"--launcher", launcher, "--restarts", "1", "--min-np", "2"}, true);
  REQUIRE(job.AwaitStep(20));
  REQUIRE(kill(job.process(2), SIGKILL) == 0);
  REQUIRE(job.AwaitStep(100));
  REQUIRE(kill(job.process(0), SIGKILL) == 0);
  REQUIRE(job.AwaitStep(200));
  REQUIRE(kill(job.process(1), SIGKILL) == 0);
  const CommandResult result = job.Wait();
  CAPTURE(result.err);
  CHECK(result.exit_code == 0);
  CHECK(result.out == UndisturbedResult());
  const std::string again = launcher == "local" ? "; the rank" : "; the job";
  CHECK(result.err.find(again + " is started again (restart 1 of 1)\n") != std::string::npos);
  CHECK(result.err.find("; the job goes on with 3 ranks\n") != std::string::npos);
  CHECK(result.err.find("; the job goes on with 2 ranks\n") != std::string::npos);
}

TEST_CASE("a job that would have too few ranks ends with the reason of the last loss") {
  const Words options = GENERATE(Words{"--min-np", "4"}, Words{"--launcher", "mpirun"});
  CAPTURE(options);
  Words words = {"--restarts", "1"};
  words.insert(words.end(), options.begin(), options.end());
  ElasticJob job(300, words, true);
  REQUIRE(job.AwaitStep(5));
  REQUIRE(kill(job.process(2), SIGKILL) == 0);
  REQUIRE(job.AwaitStep(20));
  REQUIRE(kill(job.process(0), SIGKILL) == 0);
  const CommandResult result = job.Wait();
  CAPTURE(result.err);
  CHECK(result.exit_code == 128 + SIGKILL);
  CHECK(
      result.err.find("was killed by SIGKILL; --restarts 1 allows no further restart\n") !=
      std::string::npos);
}

TEST_CASE("a job that loses three of four ranks at once goes on from the last one") {
  ElasticJob job(300, {"--restarts", "5"});
  REQUIRE(job.AwaitStep(40));
  for (const int rank : {0, 1, 3}) REQUIRE(kill(job.process(rank), SIGKILL) == 0);
  const CommandResult result = job.Wait();
  CAPTURE(result.err);
  CHECK(result.exit_code == 0);
  CHECK(result.out == UndisturbedResult());
}

TEST_CASE("a rank that is lost while the ranks get their values spoils the values of none") {
  ElasticJob job(300, {"--restarts", "5"}, false, "tests/ranks/elastic", "by_function");
  REQUIRE(job.AwaitStep(40));
  REQUIRE(kill(job.process(0), SIGKILL) == 0);
  const CommandResult result = job.Wait();
  CAPTURE(result.err);
  CHECK(result.exit_code == 0);
  CHECK(result.out == UndisturbedResult());
  CHECK(job.Has("died"));
}

const std::string kSharded = "tests/ranks/elastic_sharded";

// A job of tests/ranks/elastic_sharded that loses ranks on purpose.
CommandResult ShardedJob(const Words& options, const Words& arguments = {}) {
  TemporaryFolder folder;
  Command command{.argv = {kDtrun, "--tag", "none"}};
  command.argv.insert(command.argv.end(), options.begin(), options.end());
  command.argv.insert(command.argv.end(), {kSharded, "120", folder.path()});
  command.argv.insert(command.argv.end(), arguments.begin(), arguments.end());
  command.timeout = std::chrono::seconds(300);
  return Run(command);
}

// The first step that was taken after a loss; -1: the job did not say so.
int StepAfterLoss(const CommandResult& result) {
  const std::string said = " goes on from step ";
  const size_t first = result.err.find(said);
  return first == std::string::npos ? -1 : std::stoi(result.err.substr(first + said.size()));
}

const std::string& UndisturbedShards() {
  static const std::string result = ShardedJob({"-np", "1"}).out;
  return result;
}

TEST_CASE("the state of a sharded optimizer survives lost ranks, at most one step is lost") {
  CHECK(UndisturbedShards().find(" 480 examples\n") != std::string::npos);
  const std::string faults = GENERATE(
      "kill rank 0 at step 40", "kill rank 3 at step 40",
      "kill rank 1 at step 40; kill rank 3 at step 40",
      "kill rank 2 at step 30; kill rank 2 at step 60; kill rank 0 at step 90");
  const bool one_copy = GENERATE(false, true);
  CAPTURE(faults, one_copy);
  const CommandResult result = ShardedJob(
      {"-np", "4", "--restarts", "9", "--inject", faults},
      one_copy ? Words{"1", "one_copy"} : Words{});
  CAPTURE(result.err);
  CHECK(result.exit_code == 0);
  CHECK(result.out == UndisturbedShards());
  // On a busy machine, a rank may take further steps before the signal reaches it.
  const int killed_at = std::stoi(faults.substr(faults.find(" at step ") + 9));
  CHECK(StepAfterLoss(result) >= killed_at - 1);
}

TEST_CASE("the shares of lost ranks are dealt to the ranks that are left") {
  const bool one_copy = GENERATE(false, true);
  const CommandResult result = ShardedJob(
      {"-np", "4", "--restarts", "1", "--min-np", "1", "--inject",
       "kill rank 1 at step 20; kill rank 1 at step 40; kill rank 3 at step 60; kill rank 0 at "
       "step 90"},
      one_copy ? Words{"1", "one_copy"} : Words{});
  CAPTURE(one_copy, result.err);
  CHECK(result.exit_code == 0);
  CHECK(result.out == UndisturbedShards());
  CHECK(result.err.find("; the job goes on with 1 rank\n") != std::string::npos);
}

TEST_CASE("with copies after every tenth step, the steps since the last ones are computed again") {
  const CommandResult result =
      ShardedJob({"-np", "3", "--restarts", "9", "--inject", "kill rank 1 at step 47"}, {"10"});
  CAPTURE(result.err);
  CHECK(result.exit_code == 0);
  CHECK(result.out == UndisturbedShards());
  CHECK(result.err.find(" goes on from step 40\n") != std::string::npos);
}

TEST_CASE("one rank of a host that is left saves the shares of all") {
  ElasticJob job(120, {"--restarts", "9"}, false, kSharded);
  REQUIRE(job.AwaitStep(40));
  REQUIRE(kill(job.process(2), SIGSTOP) == 0);  // the others wait for it, in one step
  std::this_thread::sleep_for(milliseconds(300));
  for (const int rank : {1, 2, 0}) REQUIRE(kill(job.process(rank), SIGKILL) == 0);
  const CommandResult result = job.Wait();
  CAPTURE(result.err);
  CHECK(result.exit_code == 0);
  CHECK(result.out == UndisturbedShards());
  CHECK(StepAfterLoss(result) >= 40);
}

TEST_CASE("a stopped rank that goes on later is no loss") {
  ElasticJob job(300, {"--restarts", "5"});
  REQUIRE(job.AwaitStep(40));
  const pid_t process = job.process(2);
  REQUIRE(kill(process, SIGSTOP) == 0);
  std::this_thread::sleep_for(milliseconds(700));
  REQUIRE(kill(process, SIGCONT) == 0);
  const CommandResult result = job.Wait();
  CHECK(result.exit_code == 0);
  CHECK(result.err == "");
  CHECK(result.out == UndisturbedResult());
}

TEST_CASE("a job whose restarts are used up ends with the reason of the last loss") {
  ElasticJob job(300, {"--restarts", "1"}, true);
  REQUIRE(job.AwaitStep(20));
  const pid_t first = job.process(1);
  REQUIRE(kill(first, SIGKILL) == 0);
  const auto until = Clock::now() + std::chrono::seconds(30);
  while (job.process(1) == first && Clock::now() < until)
    std::this_thread::sleep_for(milliseconds(5));
  std::this_thread::sleep_for(milliseconds(500));
  REQUIRE(kill(job.process(1), SIGKILL) == 0);
  const CommandResult result = job.Wait();
  CAPTURE(result.err);
  CHECK(result.exit_code == 128 + SIGKILL);
  CHECK(
      result.err.find("was killed by SIGKILL; --restarts 1 allows no further restart\n") !=
      std::string::npos);
}

// Kills random ranks at random times, without waiting for the recovery.
CommandResult Storm(ElasticJob& job, unsigned seed, int events) {
  std::mt19937 random(seed);
  const auto draw = [&](int least, int most) {
    return std::uniform_int_distribution<int>(least, most)(random);
  };
  job.AwaitStep(1);
  for (int event = 0; event < events && job.step() < 290; ++event) {
    std::this_thread::sleep_for(milliseconds(draw(0, 1200)));
    const pid_t process = job.process(draw(0, 3));
    switch (draw(0, 3)) {
      case 0: kill(ParentOf(process) > 1 ? ParentOf(process) : process, SIGKILL); break;
      case 1:
        kill(process, SIGSTOP);
        std::this_thread::sleep_for(milliseconds(draw(0, 300)));
        kill(process, SIGCONT);
        break;
      default: kill(process, SIGKILL);
    }
  }
  return job.Wait();
}

TEST_CASE("a rank that is killed while the ranks make communicators delays no other rank") {
  ElasticJob job(300, {"--restarts", "100"}, false, "tests/ranks/elastic", "duplicates");
  std::mt19937 random(1);
  for (int step = 10; step < 270; step += 13) {
    REQUIRE(job.AwaitStep(step));
    std::this_thread::sleep_for(milliseconds(random() % 10));
    kill(job.process(static_cast<int>(random() % 4)), SIGKILL);
  }
  const CommandResult result = job.Wait();
  CAPTURE(result.err);
  CHECK_FALSE(result.timed_out);  // a lost rank that is waited for costs ten minutes
  CHECK(result.exit_code == 0);
  CHECK(result.out == UndisturbedResult());
}

// A rank that is killed after the end of its work does that again, and prints the result again.
std::string WithoutRepetition(std::string out) {
  const std::string& once = UndisturbedResult();
  while (out.size() > once.size() && out.compare(0, once.size(), once) == 0)
    out.erase(0, once.size());
  return out;
}

TEST_CASE("jobs in a storm of signals end with the result of one that was left alone") {
  const unsigned seed = GENERATE(1u, 2u, 3u);
  ElasticJob job(300, {"--restarts", "1000"}, true);
  const CommandResult result = Storm(job, seed, 12);
  CAPTURE(seed, result.err);
  CHECK(result.exit_code == 0);
  CHECK(WithoutRepetition(result.out) == UndisturbedResult());
}

// ---- Jobs that mpirun starts again --------------------------------------------------------------

TEST_CASE("a job of mpirun that loses a rank starts again at its last step or the one before") {
  const int rank = GENERATE(0, 3);
  const bool wrapper = GENERATE(false, true);
  CAPTURE(rank, wrapper);
  TemporaryFolder folder;
  ElasticJob job(
      300, {"--launcher", "mpirun", "--restarts", "5", "--report-json", folder.path() + "/report",
            "--metrics-file", folder.path() + "/metrics"});
  REQUIRE(job.AwaitStep(50));
  const pid_t process = job.process(rank);
  REQUIRE(kill(wrapper ? ParentOf(process) : process, SIGKILL) == 0);
  const CommandResult result = job.Wait();
  CAPTURE(result.err);
  CHECK(result.exit_code == 0);
  CHECK(result.out == UndisturbedResult());
  CHECK(result.err.find("dtrun: rank " + std::to_string(rank) + " on ") == 0);
  CHECK(result.err.find("; the job is started again (restart 1 of 5)\n") != std::string::npos);
  CHECK(result.err.find("dtrun: all 4 ranks go on, ") != std::string::npos);
  const nlohmann::json report = ParseJson(Read(folder.path() + "/report"));
  REQUIRE(report.at("losses").size() == 1);
  CHECK(report.at("losses")[0].at("ranks") == nlohmann::json{rank});
  CHECK(report.at("losses")[0].at("recovery_s").is_number());
  CHECK(report.at("losses")[0].at("steps_lost") <= 1);
  CHECK(report.at("exit_code") == 0);
  CHECK(
      Read(folder.path() + "/metrics").find("\ndtrun_job_lost_steps_total ") != std::string::npos);
}

TEST_CASE("jobs of mpirun in a storm of signals end with the result of one that was left alone") {
  ElasticJob job(300, {"--launcher", "mpirun", "--restarts", "1000"}, true);
  const CommandResult result = Storm(job, 1, 6);
  CAPTURE(result.err);
  CHECK(result.exit_code == 0);
  CHECK(WithoutRepetition(result.out) == UndisturbedResult());
}

TEST_CASE("mpirun starts a program that knows nothing of dtrun again, all its ranks") {
  TemporaryFolder folder;
  folder.Write(
      "program",
      "test -e failed && { echo again, $WORLD_SIZE ranks; exit; }\n"
      "test $RANK = 0 && { touch waits; sleep 60; }\n"
      "while ! test -e waits; do sleep 0.01; done\n"
      "touch failed\n"
      "exit 3\n");
  const CommandResult result = RunJob(
      {"--launcher", "mpirun", "--restarts", "1", "-np", "2", "sh", "-c",
       "cd " + folder.path() + " && . ./program"});
  CAPTURE(result.err, result.out);
  CHECK(result.exit_code == 0);
  CHECK(result.out == "again, 2 ranks\nagain, 2 ranks\n");
  CHECK(
      result.err.find("dtrun: rank 1 on localhost exited with code 3; the job is started again "
                      "(restart 1 of 1)\ndtrun: all 2 ranks go on, ") == 0);
}

TEST_CASE("a program that always fails is started again after pauses, and no more than allowed") {
  TemporaryFolder folder;
  const CommandResult result = RunJob(
      {"--launcher", "mpirun", "--restarts", "2", "-np", "2", "sh", "-c",
       "echo x >> " + folder.path() + "/starts; exit 4"});
  CAPTURE(result.err);
  CHECK(result.exit_code == 4);
  CHECK(Read(folder.path() + "/starts").size() <= 3 * 2 * 2);
  CHECK(result.err.find("--restarts 2 allows no further restart\n") != std::string::npos);
}

TEST_CASE("a rank that leaves without Shutdown is no loss: the job of mpirun ends") {
  const CommandResult result = RunJob(
      {"--launcher", "mpirun", "--restarts", "5", "-np", "2", "tests/ranks/misbehave", "leave"});
  CAPTURE(result.err);
  CHECK(result.exit_code != 0);
  CHECK(result.err.find("started again") == std::string::npos);
}

// -------------------------------------------------------------------------------------------------

TEST_CASE("a program that knows nothing of dtrun is started again") {
  TemporaryFolder folder;
  const CommandResult result = RunJob(
      {"--restarts", "1", "-np", "2", "sh", "-c",
       "test $RANK = 0 || test -e " + folder.path() + "/x || { touch " + folder.path() +
           "/x; exit 3; }; echo done"});
  CAPTURE(result.err);
  CHECK(result.exit_code == 0);
  CHECK(result.out == "done\ndone\n");
  CHECK(
      result.err.find(" exited with code 3; the rank is started again (restart 1 of 1)\n") !=
      std::string::npos);
}

TEST_CASE("a wrong option of the program is reported once and nothing is started again") {
  const CommandResult result =
      RunJob({"--restarts", "9", "-np", "2", "sh", "-c", "echo no >&2; exit 2"});
  CHECK(result.exit_code == 2);
  CHECK(result.err.find("started again") == std::string::npos);
}

TEST_CASE("options that a restarted rank cannot have are refused") {
  const std::vector<std::pair<Words, std::string>> cases = {
      {{"--ps", "1"}, "--restarts 3: found --ps; expected one of the two"},
      {{"--stdin", "0"}, "--restarts 3: found --stdin 0; expected one of the two"},
      {{"--min-np", "3"}, "--min-np 3: expected at most -np, which is 2"},
      {{"--max-np", "3"}, "--max-np 3 needs --host-discovery-script, which names further hosts"},
      {{"--host-discovery-script", "x", "--max-np", "1"},
       "--max-np 1: expected at least -np, which is 2"},
      {{"--host-discovery-script", "x", "-H", "localhost"},
       "--host-discovery-script: found -H; expected one of the two, because each names all hosts"}};
  for (const auto& [options, message] : cases) {
    Words words = {"--restarts", "3", "-np", "2"};
    words.insert(words.end(), options.begin(), options.end());
    words.push_back("true");
    const CommandResult result = RunJob(words);
    CAPTURE(result.err);
    CHECK(result.exit_code == 2);
    CHECK(result.err.find("dtrun: " + message) == 0);
  }
}

}  // namespace
