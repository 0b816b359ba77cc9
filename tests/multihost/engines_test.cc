// The promises of every launcher: one suite for all launchers, under the real scheduler if a
// launcher needs one.

#include <catch2/catch.hpp>
#include <cstdio>
#include <string>

#include "tests/multihost/rig.h"
#include "tests/support/python.h"
#include "tests/support/text.h"

namespace {

using namespace dtrun::testing;
using Catch::Matchers::Contains;

struct Engine {
  const char* name;
  size_t promises;
  const char* script;
};

TEST_CASE("every launcher keeps the same promises") {
  if (Skipped()) return;
  const auto [name, promises, script] = GENERATE(
      Engine{"local", 18, "$suite local h1 h1 -H h1:4"},
      Engine{"ssh", 18, "$suite ssh h2 'h1 h2' -H h1:2,h2:2"},
      Engine{"hydra", 18, "$suite hydra h2 'h1 h2' -H h1:2,h2:2"},
      Engine{"mpirun", 18, "$suite mpirun h2 'h1 h2' -H h1:2,h2:2"},
      Engine{
          "mpirun of Open MPI 5", 18,
          "PATH=$open_mpi_5:$PATH; $suite mpirun h2 'h1 h2' -H h1:2,h2:2"},
      Engine{
          "srun", 18,
          "tests/multihost/with_slurm h1 h2 -- sbatch --wait --nodes 2 --ntasks-per-node 2 "
          "--output /run/out $suite srun h2 'h1 h2' >/run/log && cat /run/out"},
      Engine{
          "qrsh", 15,
          "tests/multihost/with_grid_engine h1:2 h2:2 -- qsub -sync y -cwd -j y -o /run/out -pe "
          "spread 4 $suite qrsh h2 'h1 h2' >/run/log && cat /run/out"});
  std::string open_mpi_5;
  if (Contains("Open MPI 5").match(name)) {
    open_mpi_5 = FullFolder("mpi/open_mpi");
    if (open_mpi_5.empty()) return;
  }
  const CommandResult result = Run(ScriptOnHosts(
      "suite=tests/multihost/engine_suite; open_mpi_5=" + open_mpi_5 + "/bin; " + script));
  if (LacksSomething(result)) return;
  CAPTURE(name, result.out, result.err);
  const size_t kept = CountOf(result.out, "kept ");
  std::printf("%s: %zu promises kept\n", name, kept);
  CHECK(kept == promises);
  CHECK(CountOf(result.out, "BROKEN") == 0);
}

TEST_CASE("hydra stays when its ssh has failed, and dtrun names the host at once") {
  if (Skipped()) return;
  const auto [before, host, words] = GENERATE(table<std::string, std::string, std::string>({
      {"", "nowhere", "ssh: Could not resolve hostname nowhere: "},
      {"ssh h2 'pkill sshd' 2>/run/ended; ", "h2", "ssh: connect to host h2 port 22: "},
  }));
  const CommandResult result = Run(ScriptOnHosts(
      before + "timeout 20 launcher/dtrun --launcher hydra -H h1:1," + host + ":1 true; echo $?"));
  CAPTURE(result.err);
  CHECK(result.out == "69\n");
  CHECK(result.err.find("dtrun: host " + host + " cannot be used: " + words) == 0);
}

}  // namespace
