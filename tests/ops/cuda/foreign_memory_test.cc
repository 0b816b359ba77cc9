// Processes whose memory on a GPU is not from the communicator, but their own: what is registered
// is reduced where it lies, what cannot be goes through staging memory, and the bits are the same.

#include <catch2/catch.hpp>
#include <string>

#include "tests/support/subprocess.h"

namespace {

using dtrun::testing::Command;
using dtrun::testing::CommandResult;

// What two ranks, or more, have printed.
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

TEST_CASE("registered memory of other processes is read where it lies, and gives the same bits") {
  CHECK(Told("in_place") == "");
  CHECK(Told("in_place", "3") == "");
}

TEST_CASE("of an allocation, what was registered is reached, and the rest goes in rounds") {
  CHECK(Told("parts") == "");
}

TEST_CASE("memory that was freed, and taken again at the same address, is not the registered one") {
  CHECK(Told("again") == "");
}

TEST_CASE("ranks with memory of the communicator and ranks with their own reach each other's") {
  CHECK(Told("mixed") == "");
}

TEST_CASE("where a rank's memory has no handle, all are told which, and it goes in rounds") {
  const std::string line =
      "rank 1: its memory was allocated in a way that has no cudaIpc handles (a pool, or "
      "cuMemMap)\n";
  CHECK(Told("without_handle") == line + line);
}

TEST_CASE("where a rank cannot map the memory of others, all are told, and it goes in rounds") {
  const std::string line =
      "rank 1: cuIpcOpenMemHandle failed: CUDA_ERROR_INVALID_CONTEXT (said by the simulated "
      "driver)\n";
  CHECK(Told("refused") == line + line);
}

TEST_CASE("a small allocation is not handed out together with its neighbours") {
  const std::string line =
      "rank 0: its memory lies in an allocation of 1048576 bytes; expected 2097152 or more\n";
  CHECK(Told("small") == line + line);
}

TEST_CASE("what is no memory of the GPU is refused on all ranks, which go on") {
  CHECK(Told("wrong") == "");
}

TEST_CASE("several communicators and registrations share a mapping") {
  CHECK(Told("communicators") == "");
}

TEST_CASE("collectives of registered memory can be captured") { CHECK(Told("graph") == ""); }

TEST_CASE("memory is registered as often as wanted, a thousand pieces at once") {
  CHECK(Told("often") == "");
}

TEST_CASE("what scripts/gpu_check runs on a GPU tells nothing of the simulated one") {
  CHECK(Told("any_gpu") == "");
}

}  // namespace
