// Named collectives between processes.

#include <catch2/catch.hpp>
#include <chrono>
#include <string>
#include <vector>

#include "tests/support/subprocess.h"

namespace {

using dtrun::testing::Command;
using dtrun::testing::CommandResult;
using dtrun::testing::Run;

CommandResult Job(
    const std::string& np, const std::string& backend, const std::string& engine_thread = "auto") {
  return Run(Command{
      .argv = {"launcher/dtrun", "--tag", "none", "-np", np, "tests/ranks/named"},
      .environment =
          {{"DTRUN_BACKEND", backend},
           {"DTRUN_ENGINE_THREAD", engine_thread},
           {"DTRUN_TIMEOUT_S", "60"}},
      .timeout = std::chrono::seconds(240)});
}

TEST_CASE("processes submit tensors by name on every backend") {
  const std::string np = GENERATE("2", "3", "4");
  const std::string backend = GENERATE("shm", "mpi", "hierarchical");
  const CommandResult result = Job(np, backend);
  CHECK(result.err == "");
  CHECK(result.out == backend + ": all is right\n");
  CHECK(result.exit_code == 0);
}

TEST_CASE("the named queue works with engine_thread=on") {
  const CommandResult result = Job("2", "shm", "on");
  CHECK(result.err == "");
  CHECK(result.out == "shm: all is right\n");
}

TEST_CASE("64 processes submit tensors by name", "[many]") {
  const CommandResult result = Run(Command{
      .argv =
          {"launcher/dtrun", "--launcher", "local", "--oversubscribe", "--tag", "none", "-np", "64",
           "tests/ranks/named"},
      .environment = {{"DTRUN_TIMEOUT_S", "60"}},
      .timeout = std::chrono::minutes(20)});
  CHECK(result.err == "");
  CHECK(result.out == "shm: all is right\n");
  CHECK(result.exit_code == 0);
}

TEST_CASE("a process without a launcher can use a named queue") {
  const CommandResult result = Run(Command{.argv = {"tests/ranks/named"}});
  CHECK(result.out == "self: all is right\n");
  CHECK(result.exit_code == 0);
}

}  // namespace
