// Processes that allocate their own GPU memory instead of the communicator's. Registered memory is
// reduced in place. Memory that cannot be registered goes through staging memory with the same
// bits.

#include <catch2/catch.hpp>
#include <string>

#include "tests/support/subprocess.h"

namespace {

using dtrun::testing::Command;
using dtrun::testing::CommandResult;

// The output of all ranks.
std::string Told(const std::string& story, const std::string& np = "2") {
  const CommandResult result = Run(Command{
      .argv =
          {"launcher/dtrun", "--launcher", "local", "--oversubscribe", "--tag", "none", "-np", np,
           "tests/ops/cuda/foreign_rank", story},
      .environment = {{"DTRUN_TIMEOUT_S", "60"}},
      .timeout = std::chrono::seconds(120)});
  CHECK(result.err == "");
  CHECK(result.exit_code == 0);
  return result.out;
}

TEST_CASE("registered memory of other processes is read in place and gives the same bits") {
  CHECK(Told("in_place") == "");
  CHECK(Told("in_place", "3") == "");
}

TEST_CASE("the registered part of an allocation is mapped and the rest goes through staging") {
  CHECK(Told("parts") == "");
}

TEST_CASE("memory allocated again at the address of freed registered memory is not registered") {
  CHECK(Told("again") == "");
}

TEST_CASE("ranks with the memory of the communicator and ranks with own memory reach each other") {
  CHECK(Told("mixed") == "");
}

TEST_CASE("memory without an IPC handle is reported to all ranks and goes through staging") {
  const std::string line =
      "rank 1: its memory was allocated in a way that has no cudaIpc handles (a pool, or "
      "cuMemMap)\n";
  CHECK(Told("without_handle") == line + line);
}

TEST_CASE("a rank that cannot map memory is reported to all ranks and data goes through staging") {
  const std::string line =
      "rank 1: cuIpcOpenMemHandle failed: CUDA_ERROR_INVALID_CONTEXT (said by the simulated "
      "driver)\n";
  CHECK(Told("refused") == line + line);
}

TEST_CASE("a small allocation is not registered because its handle would expose its neighbours") {
  const std::string line =
      "rank 0: its memory lies in an allocation of 1048576 bytes; expected 2097152 or more\n";
  CHECK(Told("small") == line + line);
}

TEST_CASE("memory that is not on the GPU is refused on all ranks and the group stays usable") {
  CHECK(Told("wrong") == "");
}

TEST_CASE("several communicators and registrations can share a mapping") {
  CHECK(Told("communicators") == "");
}

TEST_CASE("collectives of registered memory can be captured into a graph") {
  CHECK(Told("graph") == "");
}

TEST_CASE("memory can be registered a thousand times") { CHECK(Told("often") == ""); }

TEST_CASE("the test that scripts/gpu_check runs on a GPU also passes on the simulated GPU") {
  CHECK(Told("any_gpu") == "");
}

}  // namespace
