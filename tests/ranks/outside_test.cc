// External disturbances of a job: a stopped or killed rank, a stopped job, a tiny /dev/shm.

#include <signal.h>
#include <sys/wait.h>
#include <time.h>

#include <catch2/catch.hpp>
#include <cstdio>
#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/subprocess.h"
#include "tests/support/text.h"

namespace {

using namespace dtrun::testing;
using Catch::Matchers::Contains;
using Words = std::vector<std::string>;

// stdout and stderr share one stream, so that a test can wait for lines of both.
Command Summing(const std::string& steps, const Words& options) {
  Words argv = {"sh",  "-c", "exec \"$@\" 2>&1", "sh", "launcher/dtrun", "--tag", "none",
                "-np", "2"};
  argv.insert(argv.end(), options.begin(), options.end());
  argv.insert(argv.end(), {"tests/ranks/summing", steps});
  return {.argv = argv, .environment = {{"OMPI_ALLOW_RUN_AS_ROOT", "1"}}};
}

// The process ids of both ranks, in any order.
std::vector<pid_t> Started(Subprocess& job) {
  REQUIRE(job.WaitForLines(2));
  std::istringstream lines(job.out());
  std::vector<pid_t> pids(2);
  lines >> pids[0] >> pids[1];
  REQUIRE(pids[1] > 0);
  return pids;
}

TEST_CASE("a stopped rank is reported and the job continues when the rank continues") {
  Subprocess job(Summing("100", {"--stall-warning", "1", "--stall-timeout", "50"}));
  const pid_t victim = Started(job)[1];
  kill(victim, SIGSTOP);
  REQUIRE(job.WaitForLines(3));
  CHECK_THAT(
      WithoutWaits(job.out(), 1),
      Contains("warning: waiting for N s: ") && Contains("waits for rank "));
  kill(victim, SIGCONT);
  const CommandResult result = job.Wait();
  CHECK(result.exit_code == 0);
  CHECK_THAT(result.out, Catch::EndsWith("sum 600.0\n"));
}

TEST_CASE("a rank that stays stopped is reported and ends the job with code 76") {
  Subprocess job(Summing("500", {"--stall-warning", "1", "--stall-timeout", "2"}));
  const std::vector<pid_t> pids = Started(job);
  const ProcessWatch victim(pids[1]), other(pids[0]);
  kill(pids[1], SIGSTOP);
  const CommandResult result = job.Wait();
  CAPTURE(result.out);
  CHECK(result.exit_code == 76);
  CHECK_THAT(
      WithoutWaits(result.out, 1),
      Contains("warning: waiting for N s: ") && Contains("waits for rank "));
  CHECK_THAT(WithoutWaits(result.out, 2), Contains("gave up after N s: "));
  CHECK(victim.Ends(std::chrono::seconds(2)));
  CHECK(other.Ends(std::chrono::seconds(2)));
}

TEST_CASE("a rank killed during collectives is named and the job leaves no process or file") {
  const TemporaryFolder temporary;
  const std::string victim = GENERATE("0", "1"), launcher = GENERATE("mpirun", "local");
  Command command = Summing("5000", {"--tag", "rank", "--launcher", launcher});
  command.argv.erase(command.argv.begin() + 5, command.argv.begin() + 7);  // drops --tag none
  command.environment.emplace_back("TMPDIR", temporary.path());
  Subprocess job(command);
  REQUIRE(job.WaitForLines(2));
  const std::string tag = "[1," + victim + "]<stdout>:";
  REQUIRE_THAT(job.out(), Contains(tag) && Contains("[1,0]") && Contains("[1,1]"));
  const pid_t rank = std::stoi(job.out().substr(job.out().find(tag) + tag.size()));
  const std::string other_tag = victim == "0" ? "[1,1]<stdout>:" : "[1,0]<stdout>:";
  const ProcessWatch other(
      std::stoi(job.out().substr(job.out().find(other_tag) + other_tag.size())));
  REQUIRE(other.found());
  const Words folders = temporary.Entries();
  REQUIRE(folders.size() == 1);
  kill(rank, SIGKILL);
  const CommandResult result = job.Wait();
  CAPTURE(victim, launcher, result.out);
  CHECK(result.exit_code == 137);
  CHECK_THAT(
      result.out, Contains("dtrun: rank " + victim + " on localhost was killed by SIGKILL\n") &&
                      Contains("was ended because of it\n"));
  CHECK(other.Ends(std::chrono::seconds(2)));
  CHECK(temporary.Entries().empty());
  CHECK_FALSE(std::filesystem::exists("/dev/shm/" + folders[0]));
}

TEST_CASE("a job stopped for longer than its time limits continues to the same result") {
  Command command = Summing("100", {"--stall-warning", "1", "--stall-timeout", "2"});
  command.environment.emplace_back("DTRUN_ENGINE_THREAD", GENERATE("on", "off"));
  Subprocess job(command);
  Started(job);
  job.Signal(SIGTSTP);
  siginfo_t stopped = {};
  REQUIRE(waitid(P_PID, static_cast<id_t>(job.pid()), &stopped, WSTOPPED) == 0);
  const timespec longer = {4, 0};
  nanosleep(&longer, nullptr);
  job.Signal(SIGCONT);
  const CommandResult result = job.Wait();
  CHECK(result.exit_code == 0);
  CHECK_THAT(result.out, Catch::EndsWith("\nsum 600.0\n"));
  CHECK(result.out.find("warning") == std::string::npos);
}

TEST_CASE("a job needs only a tiny /dev/shm and a loopback network") {
  const std::string size = GENERATE("4m", "4k"), backend = GENERATE("shm", "mpi");
  const bool network = GENERATE(true, false);
  Command command = Summing("5", {"--backend", backend});
  command.argv.insert(
      command.argv.begin(),
      {"unshare", network ? "-m" : "-mn", "sh", "-c",
       "ip link set lo up && mount -t tmpfs -o size=" + size +
           " tmpfs /dev/shm || exit 77; \"$@\"; code=$?; ls /dev/shm; exit $code",
       "sh"});
  const CommandResult result = Run(command);
  if (result.exit_code == 77 || result.err.find("unshare failed") != std::string::npos) {
    std::printf("SKIPPED: mounting is not allowed here\n");
    return;
  }
  CAPTURE(size, backend, network, result.out, result.err);
  CHECK(result.exit_code == 0);
  CHECK_THAT(result.out, Catch::EndsWith("sum 30.0\n"));
}

}  // namespace
