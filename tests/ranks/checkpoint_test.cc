// Checkpoints of processes: kills while saving, full and read-only disks, and two jobs in one
// folder.

#include <signal.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/subprocess.h"
#include "tests/support/text.h"

namespace dtrun::testing {
namespace {

using Catch::Matchers::Contains;
using Words = std::vector<std::string>;

Words Saver(int ranks, const Words& arguments) {
  Words argv = {"launcher/dtrun", "--tag", "none", "--oversubscribe", "-np", std::to_string(ranks)};
  if (ranks == 0) argv.clear();  // no launcher
  argv.push_back("tests/ranks/saver");
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  return argv;
}

// The number after the last `what` in the complete lines of `text`, or 0.
int LastNumber(const std::string& text, const std::string& what) {
  const size_t end = text.rfind('\n');
  if (end == std::string::npos) return 0;
  const size_t at = text.rfind(what, end);
  return at == std::string::npos ? 0 : std::atoi(text.c_str() + at + what.size());
}

TEST_CASE("two ranks load a checkpoint that four ranks saved in shards") {
  const TemporaryFolder folder;
  const CommandResult four =
      Run({.argv = Saver(4, {folder.path(), "sharded", "saves=3", "elements=600000"})});
  CAPTURE(four.out, four.err);
  CHECK(four.exit_code == 0);
  CHECK(std::filesystem::exists(folder.path() + "/ckpt_3/model-00004-of-00004.safetensors"));
  const CommandResult two =
      Run({.argv = Saver(2, {folder.path(), "saves=1", "background", "elements=600000"})});
  CAPTURE(two.out, two.err);
  CHECK(CountOf(two.out, "has all of 3\n") == 2);
  CHECK(LastNumber(two.out, "saved ") == 4);
  CHECK(two.exit_code == 0);
}

// Starts a saver, checks that it resumes from checkpoint `*saved` or a later one, and kills the
// saver at a random moment. Sets `*saved` to the last reported checkpoint.
void KillAndResume(
    const TemporaryFolder& folder, std::mt19937& random, const Words& settings, int* saved) {
  Words arguments = {folder.path(), "keep=2"};
  arguments.insert(arguments.end(), settings.begin(), settings.end());
  Subprocess saver({.argv = Saver(0, arguments)});
  REQUIRE(saver.WaitForLines(2));
  CAPTURE(saver.out(), saver.err());
  CHECK(CountOf(saver.out(), "rank 0 has all of ") == 1);
  const int resumed = LastNumber(saver.out(), "has all of ");
  // A reported checkpoint is never lost. An interrupted save may have left a checkpoint or not.
  CHECK(resumed >= *saved);
  CHECK(resumed <= *saved + 2);
  std::this_thread::sleep_for(std::chrono::microseconds(random() % 15'000));
  saver.Signal(SIGKILL);
  const CommandResult killed = saver.Wait();
  CHECK(killed.exit_code == 128 + SIGKILL);
  *saved = std::max(resumed, LastNumber(killed.out, "saved "));
}

TEST_CASE("two hundred kills at random moments of saving lose no checkpoint") {
  const TemporaryFolder folder;
  const auto seed = static_cast<unsigned>(std::random_device()());
  CAPTURE(seed);
  std::mt19937 random(seed);
  int saved = 0, interrupted = 0;
  for (int round = 0; round < 200; ++round) {
    CAPTURE(round);
    Words settings = {"elements=100000"};
    if (round % 2 == 1) settings.push_back("background");
    KillAndResume(folder, random, settings, &saved);
    for (const std::string& name : folder.Entries())
      if (name.starts_with(".tmp-")) ++interrupted;
  }
  // Some kills interrupted a save.
  CHECK(interrupted > 20);
  const CommandResult last = Run({.argv = Saver(0, {folder.path(), "saves=1", "keep=2"})});
  CAPTURE(last.out, last.err);
  CHECK(LastNumber(last.out, "has all of ") >= saved);
  CHECK(last.err.empty());
  CHECK(folder.Entries().size() == 4);  // the lock, two checkpoints, and latest
}

TEST_CASE("a kill of rank 0 loses no checkpoint") {
  const TemporaryFolder folder;
  int saved = 0;
  for (int round = 0; round < 4; ++round) {
    Subprocess job(
        {.argv = Saver(2, {folder.path(), "sharded", "keep=2", "elements=600000", "background"})});
    REQUIRE(job.WaitForLines(4));
    CAPTURE(job.out(), job.err());
    const int resumed = LastNumber(job.out(), "has all of ");
    CHECK(CountOf(job.out(), "has all of " + std::to_string(resumed) + "\n") == 2);
    CHECK(resumed >= saved);
    ::kill(LastNumber(job.out(), "process "), SIGKILL);
    saved = std::max(resumed, LastNumber(job.Wait().out, "saved "));
  }
  CHECK(saved > 0);
}

// Runs `script` in a shell where $FOLDER is a file system of 1 MB.
CommandResult OnSmallDisk(const std::string& script) {
  const TemporaryFolder folder;
  Words argv = {
      "unshare", "-rm", "bash", "-c",
      "mount -t tmpfs -o size=1m tmpfs \"$FOLDER\" || exit 77; "
      "saver() { launcher/dtrun --tag none --oversubscribe -np 2 tests/ranks/saver \"$@\"; }; " +
          script};
  return Run({.argv = argv, .environment = {{"FOLDER", folder.path()}}});
}

bool Impossible(const CommandResult& result) {
  if (result.exit_code != 77 && result.err.find("unshare: ") == std::string::npos) return false;
  WARN("skipped: no file system can be mounted here: " << result.err);
  return true;
}

TEST_CASE("on a full disk the old checkpoints remain and training continues") {
  const std::string mode = GENERATE("", "background", "sharded", "sharded background");
  const CommandResult result = OnSmallDisk(
      "saver $FOLDER elements=40000 saves=5 " + mode +
      "; echo \"code $?\"; ls -A $FOLDER; saver $FOLDER elements=40000 saves=0 " + mode);
  CAPTURE(mode, result.out, result.err);
  if (Impossible(result)) return;
  // Each checkpoint has 320 kB.
  CHECK_THAT(result.out, Contains("saved 2\n") && !Contains("saved 4\n"));
  for (const char* rank : {"rank 0: ", "rank 1: "})
    CHECK(
        CountOf(result.out, rank) ==
        CountOf(result.out, std::string(rank) + "checkpoint '") +
            CountOf(result.out, std::string(rank) + "rank 1: checkpoint '"));
  CHECK(CountOf(result.out, "No space left on device") == 4);  // saves 4 and 5 on both ranks
  CHECK_THAT(
      result.out, Contains("code 73\n.lock\nckpt_1\nckpt_2\nckpt_3\nlatest\n") &&
                      Contains("rank 0 has all of 3\n") && Contains("rank 1 has all of 3\n"));
}

TEST_CASE(
    "a read-only folder is an error for a job that saves but not for a job with the option "
    "read_only") {
  const CommandResult result = OnSmallDisk(
      "saver $FOLDER saves=1 elements=100; mount -o remount,ro $FOLDER; "
      "saver $FOLDER saves=1 elements=100; echo \"code $?\"; "
      "saver $FOLDER read_only saves=0 elements=100");
  CAPTURE(result.out, result.err);
  if (Impossible(result)) return;
  CHECK(CountOf(result.out, "/.lock': Read-only file system\n") == 2);
  CHECK_THAT(result.out, Contains("code 73\n"));
  CHECK(CountOf(result.out, "has all of 1\n") == 2);
}

TEST_CASE("a folder in use is refused with the owner's process id until the owner is killed") {
  const TemporaryFolder folder;
  Subprocess first({.argv = Saver(0, {folder.path(), "keep=1"})});
  REQUIRE(first.WaitForLines(2));
  const CommandResult second = Run({.argv = Saver(2, {folder.path(), "saves=1"})});
  CAPTURE(second.out, second.err);
  CHECK(second.exit_code == 73);
  CHECK(
      CountOf(
          second.out, "checkpoint folder '" + folder.path() + "' is in use: process " +
                          std::to_string(first.pid()) + " on ") == 2);
  first.Signal(SIGKILL);
  first.Wait();
  CHECK(Run({.argv = Saver(2, {folder.path(), "saves=1"})}).exit_code == 0);
}

TEST_CASE("rank 0 warns of an invalid checkpoint in one line and loads the checkpoint before it") {
  const TemporaryFolder folder;
  CHECK(Run({.argv = Saver(2, {folder.path(), "saves=2"})}).exit_code == 0);
  std::filesystem::resize_file(folder.path() + "/ckpt_2/model.safetensors", 1000);
  const CommandResult result = Run({.argv = Saver(2, {folder.path(), "saves=0"})});
  CAPTURE(result.out, result.err);
  CHECK(CountOf(result.out, "has all of 1\n") == 2);
  CHECK_THAT(
      result.err,
      Contains(
          "dtrun: rank 0: warning: checkpoint '" + folder.path() + "/ckpt_2' is not valid: ") &&
          Contains("; loaded '" + folder.path() + "/ckpt_1'\n"));
  CHECK(CountOf(result.err, "\n") == 1);
}

}  // namespace
}  // namespace dtrun::testing
