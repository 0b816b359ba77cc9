// Jobs over several hosts. The hosts share a kernel and its boot id, but no backend may take them
// for one host.

#include <catch2/catch.hpp>
#include <string>

#include "tests/multihost/rig.h"

namespace {

using namespace dtrun::testing;

constexpr char kConformance[] = "tests/ranks/conformance";

TEST_CASE("a job runs over two hosts") {
  if (Skipped()) return;
  const CommandResult result =
      Run(OnHosts({kDtrun, "--tag", "none", "-np", "4", "-H", "h1:2,h2:2", "examples/sgd"}));
  // stderr is not checked: Open MPI's ssh starter sometimes loses a setpgid race and prints a
  // warning.
  CHECK(result.out == "4 ranks agree on 1.500\n");
  CHECK(result.exit_code == 0);
}

TEST_CASE("ranks run on the requested hosts") {
  if (Skipped()) return;
  const CommandResult result = Run(OnHosts(
      {kDtrun, "--tag", "none", "-H", "h1:1,h2:3", "sh", "-c",
       "[ $(hostname) = h2 ] && echo on h2 || true"}));
  CHECK(result.out == "on h2\non h2\non h2\n");
  CHECK(result.exit_code == 0);
}

TEST_CASE("the conformance suite passes across hosts on the hierarchical backend") {
  if (Skipped()) return;
  const auto [hosts, transport] = GENERATE(table<std::string, std::string>({
      {"h1:2,h2:2", "tcp"},
      {"h1:2,h2:2", "mpi"},
      {"h1:1,h2:3", "tcp"},
      {"h1:3,h2:1", "tcp"},
      {"h1:4,h2:4", "tcp"},
      {"h1:1,h2:1,h3:2", "tcp"},
      {"h1:3,h2:1,h3:2,h4:2", "tcp"},
      {"h1:3,h2:1,h3:2,h4:2", "ucx"},
      {"h1:1,h2:3", "ucx"},
  }));
  // tcp is the default.
  const std::string option = transport == "tcp" ? "auto" : transport;
  const CommandResult result = Run(OnHosts(
      {kDtrun, "--tag", "none", "-H", hosts, "--transport", option, kConformance},
      {"--names", "h1,h2,h3,h4"}, {{"DTRUN_LOG_LEVEL", "info"}}));
  CAPTURE(hosts, transport, result.err);
  CHECK(result.out == "hierarchical: many checks, 0 wrong\n");
  CHECK_THAT(
      result.err, Catch::Contains("backend shm is passed over: rank 0: the ranks run on ") &&
                      Catch::Contains(
                          "backend hierarchical (shm within each host, " + transport +
                          " between them) reduces\n"));
  CHECK(result.exit_code == 0);
}

TEST_CASE("the conformance suite passes between hosts of one rank each") {
  if (Skipped()) return;
  const std::string hosts = GENERATE("h1:1,h2:1", "h1:1,h2:1,h3:1", "h1:1,h2:1,h3:1,h4:1");
  const std::string transport = GENERATE("tcp", "ucx");
  const CommandResult result = Run(OnHosts(
      {kDtrun, "--tag", "none", "-H", hosts, "--transport", transport, kConformance},
      {"--names", "h1,h2,h3,h4"}));
  CAPTURE(hosts, transport, result.err);
  CHECK(result.out == transport + ": many checks, 0 wrong\n");
  CHECK(result.exit_code == 0);
}

TEST_CASE("the conformance suite passes if all ranks of several hosts talk over one transport") {
  if (Skipped()) return;
  const std::string hosts = GENERATE("h1:2,h2:1", "h1:3,h2:1,h3:2,h4:2");
  const std::string transport = GENERATE("tcp", "ucx");
  const CommandResult result = Run(OnHosts(
      {kDtrun, "--tag", "none", "-H", hosts, "--backend", transport, "--transport", transport,
       kConformance},
      {"--names", "h1,h2,h3,h4"}));
  CAPTURE(hosts, transport, result.err);
  CHECK(result.out == transport + ": many checks, 0 wrong\n");
  CHECK(result.exit_code == 0);
}

TEST_CASE("plain mpirun also starts a job over several hosts") {
  if (Skipped()) return;
  // mpirun would set the variable of `scripts/test --full` on this host alone.
  const CommandResult result = Run(OnHosts(
      {"env", "-u", "DTRUN_TEST_FULL", "mpirun", "--allow-run-as-root", "-np", "4", "-H",
       "h1:2,h2:2", "--bind-to", "none", kConformance}));
  CAPTURE(result.err);
  CHECK(result.out == "hierarchical: many checks, 0 wrong\n");
  CHECK(result.exit_code == 0);
}

TEST_CASE("without MPI_THREAD_MULTIPLE reductions between hosts do not overlap and dtrun warns") {
  if (Skipped()) return;
  const bool multiple = GENERATE(false, true);
  const CommandResult result = Run(OnHosts(
      {"mpirun", "--allow-run-as-root", "-np", "2", "-H", "h1:1,h2:1", "--bind-to", "none", "-x",
       "OMP_NUM_THREADS=1", "tests/ranks/mpi_trainer", multiple ? "multiple" : "single",
       "describe"}));
  CHECK(result.exit_code == 0);
  CHECK_THAT(
      result.out, Catch::Contains(
                      multiple ? "overlap with the caller's own work: on; "
                               : "overlap with the caller's own work: off, because a thread of "
                                 "dtrun's may call MPI only at MPI_THREAD_MULTIPLE"));
  const std::string warning =
      "dtrun: rank 0: warning: operations move only while dtrun is called, not while backward runs";
  CHECK((result.err.find(warning) == std::string::npos) == multiple);
}

TEST_CASE("dtrun exits with the exit code of a rank on another host") {
  if (Skipped()) return;
  TemporaryFolder shared;  // rank 1 fails after rank 0 has started
  const std::string script = "cd " + shared.path() +
                             "; [ $(hostname) = h1 ] && touch up && exec sleep 50; "
                             "until [ -e up ]; do sleep 0.1; done; exit 9";
  const CommandResult result =
      Run(OnHosts({kDtrun, "--tag", "none", "-H", "h1:1,h2:1", "sh", "-c", script}));
  CHECK(result.exit_code == 9);
  CHECK(!result.timed_out);
}

TEST_CASE("a host name that does not exist is reported") {
  if (Skipped()) return;
  Command command = OnHosts({kDtrun, "--tag", "none", "-H", "h1:1,nosuch.example:1", "true"});
  command.timeout = std::chrono::seconds(20);
  const CommandResult result = Run(command);
  CHECK(result.exit_code == 69);
  CHECK_FALSE(result.timed_out);
  CHECK_THAT(
      result.err,
      Catch::Contains("dtrun: host nosuch.example cannot be used: ssh: Could not resolve "
                      "hostname nosuch.example"));
}

}  // namespace
