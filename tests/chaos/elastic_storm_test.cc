// Trainings in which ranks are killed, stopped and continued at random (dtrun --restarts), and
// trainings that are pre-empted. Each ends with the parameters of a training that was left alone.
// ELASTIC_EVENTS is the number of events in all trainings together, ELASTIC_MPI_EVENTS that of the
// trainings that mpirun starts, PREEMPTIONS that of the pre-emptions, ELASTIC_SEED the first seed.
// Prints how long after a kill the next step was completed. check_examples checks that each
// training used every example of an epoch once.

#include <signal.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "base/flight_record.h"
#include "base/text.h"
#include "tests/support/json.h"
#include "tests/support/subprocess.h"
#include "tests/support/text.h"

namespace dtrun::testing {
namespace {

using base::Text;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr int kRanks = 4;
constexpr uint64_t kStepsOfEpoch = 100;  // then the test set is evaluated, for seconds
constexpr int64_t kSteps = 150;

int Wish(const char* name, int otherwise) {
  const char* wish = std::getenv(name);
  return wish == nullptr ? otherwise : std::atoi(wish);
}

// "": the file cannot be read, for example because its process has just ended.
std::string Read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();  // unlike an iterator, throws no errors of the file
  return text.str();
}

// The value of a variable in the environment of a process; "": none.
std::string VariableOf(pid_t process, const std::string& name) {
  const std::string all = '\0' + Read(Text("/proc/", process, "/environ"));
  const size_t at = all.find('\0' + name + '=');
  if (at == std::string::npos) return "";
  const std::string value = all.substr(at + name.size() + 2);
  return value.substr(0, value.find('\0'));
}

pid_t ParentOf(pid_t process) {
  std::ifstream status(Text("/proc/", process, "/status"));
  for (std::string word; status >> word;) {
    pid_t parent = -1;
    if (word == "PPid:" && status >> parent) return parent;
  }
  return -1;
}

// A training of cnn_fmnist, with a name in its environment.
class Training {
 public:
  // `options` are dtrun's, `program_options` those of the program.
  explicit Training(
      const std::string& name, const std::vector<std::string>& options = {},
      const std::vector<std::string>& program_options = {})
      : name_(name) {
    Command command{.argv = {"env", "ELASTIC_STORM=" + name, "launcher/dtrun", "--tag", "none"}};
    command.argv.insert(command.argv.end(), options.begin(), options.end());
    const std::string steps = Text(kSteps);
    for (const char* word :
         {"-np", "4", "models/cnn_fmnist", "--deterministic", "--max-steps", steps.c_str(),
          "--epochs", "2", "--global-batch-size", "32", "--steps-per-epoch", "100"})
      command.argv.emplace_back(word);
    for (const std::string& word :
         {std::string("--json"), folder_.path() + "/result", std::string("--example-log"),
          examples()})
      command.argv.push_back(word);
    command.argv.insert(command.argv.end(), program_options.begin(), program_options.end());
    command.timeout = std::chrono::minutes(10);
    job_.emplace(command);
  }

  // The processes of the ranks that run now.
  std::map<int, pid_t> Processes() {
    std::map<int, pid_t> found;
    std::error_code ignored;
    for (const auto& entry : std::filesystem::directory_iterator("/proc", ignored)) {
      const auto process = base::ParseInteger(entry.path().filename().string());
      if (!process || Read(entry.path() / "comm") != "cnn_fmnist\n") continue;
      const auto pid = static_cast<pid_t>(*process);
      if (VariableOf(pid, "ELASTIC_STORM") != name_) continue;
      flights_ = VariableOf(pid, "DTRUN_FLIGHT_FOLDER");
      const std::string number = VariableOf(pid, "DTRUN_RANK");
      if (const auto rank =
              base::ParseInteger(number.empty() ? VariableOf(pid, "OMPI_COMM_WORLD_RANK") : number))
        found[static_cast<int>(*rank)] = pid;
    }
    return found;
  }

  // The steps that all ranks have completed.
  uint64_t CompletedSteps() const {
    uint64_t least = UINT64_MAX;
    for (int rank = 0; rank < kRanks; ++rank) {
      const auto progress = base::ReadFlightProgress(base::FlightFile(flights_, rank));
      least = std::min(least, progress ? progress->step : 0);
    }
    return least;
  }
  uint64_t MostSteps() const {
    uint64_t most = 0;
    for (int rank = 0; rank < kRanks; ++rank)
      if (const auto progress = base::ReadFlightProgress(base::FlightFile(flights_, rank)))
        most = std::max(most, progress->step);
    return most;
  }

  // The log of the examples that the training used.
  std::string examples() const { return folder_.path() + "/examples"; }

  void Signal(int signal) { job_->Signal(signal); }
  CommandResult Wait() { return job_->Wait(); }
  std::string Digest() const {
    const auto result = nlohmann::json::parse(Read(folder_.path() + "/result"), nullptr, false);
    return result.is_object() ? result.value("parameter_digest", "") : "";
  }

 private:
  std::string name_, flights_;
  TemporaryFolder folder_;
  std::optional<Subprocess> job_;
};

// Makes an event. Returns whether a process was killed.
bool Strike(const std::map<int, pid_t>& processes, std::mt19937& random) {
  const auto draw = [&](int least, int most) {
    return std::uniform_int_distribution<int>(least, most)(random);
  };
  const auto victim = std::next(processes.begin(), draw(0, static_cast<int>(processes.size()) - 1));
  const pid_t process = victim->second, wrapper = ParentOf(process);
  switch (draw(0, 5)) {
    case 0:
      kill(process, SIGSTOP);
      std::this_thread::sleep_for(milliseconds(draw(1, 400)));
      kill(process, SIGCONT);
      return false;
    case 1: return kill(wrapper > 1 ? wrapper : process, SIGKILL) == 0;
    case 2:  // two at once
      for (const auto& [rank, other] : processes)
        if (rank != victim->first) return kill(other, SIGKILL) + kill(process, SIGKILL) == 0;
      [[fallthrough]];
    default: return kill(process, SIGKILL) == 0;
  }
}

// A training that was left alone.
struct Calm {
  Training training{Text("calm-", getpid())};
  std::string digest;
};
const Calm& CalmTraining() {
  static const std::unique_ptr<Calm> calm = [] {
    auto made = std::make_unique<Calm>();
    if (made->training.Wait().exit_code == 0) made->digest = made->training.Digest();
    return made;
  }();
  return *calm;
}
const std::string& CalmDigest() { return CalmTraining().digest; }

// How long after the kills the next step was completed.
void PrintSeconds(std::vector<double> seconds) {
  std::sort(seconds.begin(), seconds.end());
  std::printf(
      "%zu kills: the next step of all ranks after %.2f s (median), %.2f s (99 %%), %.2f s "
      "(most)\n",
      seconds.size(), seconds[seconds.size() / 2], seconds[seconds.size() * 99 / 100],
      seconds.back());
}

CommandResult CheckLogs(const std::string& like, const std::vector<std::string>& logs) {
  Command command{.argv = {"tests/chaos/check_examples", like}};
  command.argv.insert(command.argv.end(), logs.begin(), logs.end());
  return Run(command);
}

TEST_CASE("the check of logs finds a missing, a repeated, a skipped and an exchanged example") {
  const auto found = [](const std::string& lines_of_rank_1) {
    TemporaryFolder folder;
    const auto write = [&](const std::string& name, const std::string& lines) {
      std::ofstream(folder.path() + name) << lines;
    };
    for (const std::string log : {"/calm", "/log"}) {
      std::filesystem::create_directory(folder.path() + log);
      write(log + "/examples.0.0", "0 0 4 0 7 3\n0 1 4 0 5 6\n");
    }
    write("/calm/examples.0.1", "0 0 4 2 1 2\n0 1 4 2 8 9\n");
    write("/log/examples.0.1", lines_of_rank_1);
    return CheckLogs(folder.path() + "/calm", {folder.path() + "/log"});
  };
  CHECK(found("0 0 4 2 1 2\n0 1 4 2 8 9\n").exit_code == 0);
  for (const std::string wrong :
       {"0 0 4 2 1 2\n0 1 4 2 8\n", "0 0 4 2 1 2\n0 1 4 2 8 1\n", "0 0 4 2 1 2\n",
        "0 0 4 2 1 2\n0 1 4 2 8 4\n", "0 0 4 2 1 2\n0 1 4 2 9 8\n",
        "0 0 4 2 1 2\n0 1 4 2 8 9\n0 2 4 2 8 9\n"}) {
    const CommandResult result = found(wrong);
    CAPTURE(wrong, result.out, result.err);
    CHECK(result.exit_code == 1);
    CHECK(result.out.find("step") != std::string::npos);
  }
}

// Checks that all steps of a training used each example once. `logs` has one folder for each job.
void CheckExamples(const std::vector<std::string>& logs) {
  const CommandResult result = CheckLogs(CalmTraining().training.examples(), logs);
  INFO(result.out << result.err);
  REQUIRE(
      result.out ==
      Text(kSteps, " steps with ", 32 * kSteps, " examples, each example of an epoch once\n"));
}

// A crash of a rank, which --restarts would hide.
bool Crashed(const CommandResult& result) {
  return result.err.find("SIGABRT") != std::string::npos ||
         result.err.find("SIGSEGV") != std::string::npos;
}

// Trainings with `events` events in all. Passes the output of each to `check`.
void Storm(
    const std::string& name, const std::vector<std::string>& options, int events,
    const std::function<void(const CommandResult&)>& check) {
  const std::string digest = CalmDigest();
  REQUIRE(digest.size() == 16);
  std::vector<double> seconds;  // from a kill to the next step
  for (int seed = Wish("ELASTIC_SEED", 1); events > 0; ++seed) {
    std::mt19937 random(static_cast<unsigned>(seed));
    Training training(Text(name, '-', getpid(), '-', seed), options);
    while (events > 0) {
      std::this_thread::sleep_for(
          milliseconds(std::uniform_int_distribution<int>(50, 1500)(random)));
      const std::map<int, pid_t> processes = training.Processes();
      if (processes.size() < kRanks) {
        if (processes.empty() && training.MostSteps() == 0 && !training.Digest().empty()) break;
        continue;
      }
      const uint64_t before = training.MostSteps();
      if (before >= 140) break;  // too few steps are left to see the next one
      const auto begin = Clock::now();
      --events;
      if (!Strike(processes, random)) continue;
      // Another event while ranks recover, now and then.
      if (random() % 4 == 0 || before == kStepsOfEpoch) continue;
      while (training.CompletedSteps() <= before && Clock::now() < begin + std::chrono::minutes(1))
        std::this_thread::sleep_for(milliseconds(2));
      seconds.push_back(std::chrono::duration<double>(Clock::now() - begin).count());
    }
    const CommandResult result = training.Wait();
    INFO("seed " << seed << "\n" << result.err << result.out);
    REQUIRE(result.exit_code == 0);
    REQUIRE_FALSE(Crashed(result));
    REQUIRE(training.Digest() == digest);
    CheckExamples({training.examples()});
    check(result);
  }
  REQUIRE(!seconds.empty());
  PrintSeconds(seconds);
}

TEST_CASE("trainings in a storm of kills have the parameters of one that was left alone") {
  Storm("storm", {"--restarts", "100000"}, Wish("ELASTIC_EVENTS", 20), [](const auto&) {});
}

// The most steps that one loss has cost, in the lines of dtrun.
int64_t MostStepsLost(const std::string& lines) {
  int64_t most = 0;
  const std::string before = "after the loss; ";
  for (size_t at = 0; (at = lines.find(before, at)) != std::string::npos; at += before.size())
    most = std::max<int64_t>(most, std::atoll(lines.c_str() + at + before.size()));
  return most;
}

TEST_CASE("trainings of mpirun in a storm of kills lose at most one step each time") {
  Storm(
      "mpi-storm", {"--launcher", "mpirun", "--restarts", "100000"}, Wish("ELASTIC_MPI_EVENTS", 6),
      [](const CommandResult& result) { REQUIRE(MostStepsLost(result.err) <= 1); });
}

// The number after `words` in `text`; -1: they are not there.
int64_t NumberAfter(const std::string& text, const std::string& words) {
  const size_t at = text.find(words);
  return at == std::string::npos ? -1 : std::atoll(text.c_str() + at + words.size());
}

TEST_CASE("trainings that are pre-empted at any time save, resume and lose no step") {
  REQUIRE(CalmDigest().size() == 16);
  int left = Wish("PREEMPTIONS", 3), saved = 0, late = 0;
  for (int seed = Wish("ELASTIC_SEED", 1); left > 0; ++seed) {
    std::mt19937 random(static_cast<unsigned>(seed));
    const auto draw = [&](int least, int most) {
      return milliseconds(std::uniform_int_distribution<int>(least, most)(random));
    };
    TemporaryFolder backups;
    std::list<Training> runs;
    int64_t resumes_at = 0;
    for (int run = 0;; ++run) {
      INFO("seed " << seed << ", run " << run);
      Training& training = runs.emplace_back(
          Text("preempted-", getpid(), '-', seed, '-', run),
          std::vector<std::string>{"--restarts", "1000", "--grace", "60"},
          std::vector<std::string>{"--checkpoint-dir", backups.path(), "--resume"});
      std::map<int, pid_t> processes;
      while (processes.size() < kRanks && training.Digest().empty()) {
        std::this_thread::sleep_for(milliseconds(5));
        processes = training.Processes();
      }
      uint64_t seen = 0;
      if (left > 0) {
        const int when = static_cast<int>(random() % 4);
        std::this_thread::sleep_for(when == 0 ? draw(0, 400) : draw(400, 5000));
        processes = training.Processes();
        if (when == 1 && !processes.empty()) {  // the notice comes while the ranks recover
          kill(processes.begin()->second, SIGKILL);
          std::this_thread::sleep_for(draw(0, 300));
        }
        seen = training.MostSteps();
        --left;
        training.Signal(SIGTERM);
      }
      const CommandResult result = training.Wait();
      INFO(result.err << result.out);
      REQUIRE((result.exit_code == 0 || result.exit_code == 75));
      REQUIRE_FALSE(Crashed(result));
      const int64_t resumed = NumberAfter(result.err, backups.path() + "/ckpt_");
      if (resumes_at > 0) REQUIRE(resumed == resumes_at);
      if (result.exit_code == 0) {
        REQUIRE(training.Digest() == CalmDigest());
        std::vector<std::string> logs;
        for (const Training& of_run : runs)  // one that ends at once has none
          if (std::filesystem::exists(of_run.examples())) logs.push_back(of_run.examples());
        CheckExamples(logs);
        break;
      }
      ++saved;
      const int64_t ended = NumberAfter(result.err, "ended after step ");
      if (ended < 0) {  // in the evaluation after the training
        ++late;
        resumes_at = kSteps;
        continue;
      }
      REQUIRE(ended >= resumes_at);
      REQUIRE(ended + 1 >= static_cast<int64_t>(seen));
      resumes_at = ended;
    }
  }
  std::printf("%d pre-emptions saved, %d of them after the training\n", saved, late);
}

}  // namespace
}  // namespace dtrun::testing
