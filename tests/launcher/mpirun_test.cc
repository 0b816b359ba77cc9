#include "launcher/engines/mpirun.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "launcher/support/launch_error.h"
#include "launcher/support/quoting.h"

namespace dtrun::launcher {
namespace {

using Catch::Matchers::Contains;
using Words = std::vector<std::string>;

EngineCall TwoRanks() {
  EngineCall call;
  call.file = "/usr/bin/mpirun";
  call.wrapper = "/opt/dtrun_rank";
  call.folder = "/tmp/job";
  call.placement = {{"localhost", 2}};
  call.program = {"./train", "--epochs", "3"};
  return call;
}

TEST_CASE("mpirun gets the ranks and the hosts and the wrapper with the marked program") {
  const std::string line = ShellLine(MpirunArgv(TwoRanks()));
  CHECK_THAT(
      line, Catch::StartsWith("/usr/bin/mpirun -np 2 ") && Contains(" -H localhost:2 ") &&
                Catch::EndsWith(" /opt/dtrun_rank +./train +--epochs +3"));
}

TEST_CASE("with several hosts mpirun gets one host per rank in the order of the hosts") {
  EngineCall call = TwoRanks();
  call.placement = {{"h2", 2}, {"localhost", 1}};
  CHECK_THAT(
      ShellLine(MpirunArgv(call)),
      Contains(" -np 3 ") && Contains(" -H h2,h2,localhost ") && Contains(" --map-by seq "));
}

TEST_CASE("only root gets --allow-run-as-root") {
  EngineCall call = TwoRanks();
  CHECK_THAT(ShellLine(MpirunArgv(call)), !Contains("--allow-run-as-root"));
  call.as_root = true;
  CHECK_THAT(ShellLine(MpirunArgv(call)), Contains("--allow-run-as-root"));
}

TEST_CASE("dtrun_daemon gives orted the job's folder and networks unless its path has a space") {
  EngineCall call = TwoRanks();
  call.placement = {{"h1", 1}, {"h2", 1}};
  call.daemon = "/opt/dtrun_daemon";
  call.remote_folder = "0a1b";
  const auto agent = [&] { return ShellLine(MpirunArgv(call)); };
  CHECK_THAT(agent(), Contains(" --mca orte_launch_agent '/opt/dtrun_daemon 0a1b - orted' "));
  call.listen_in = {"10.1.0.0/16", "10.2.0.0/16"};
  CHECK_THAT(agent(), Contains("'/opt/dtrun_daemon 0a1b 10.1.0.0/16,10.2.0.0/16 orted'"));
  call.daemon = "/opt/my programs/dtrun_daemon";
  CHECK_THAT(agent(), !Contains("orte_launch_agent"));
}

TEST_CASE("DTRUN_LISTEN_IN tells mpirun where to listen and the user's LD_PRELOAD is kept") {
  EngineCall call = TwoRanks();
  call.engine = FindLaunchEngine("mpirun");
  call.listener = "/opt/dtrun_listen.so";
  call.quiet = false;
  const auto prepared = [&] {
    Variables variables = {"LD_PRELOAD=mine.so"};
    call.engine->Prepare(call, variables);
    return variables;
  };
  CHECK(prepared() == Variables{"LD_PRELOAD=mine.so"});
  call.listen_in = {"127.0.0.1/32"};
  CHECK(
      prepared() ==
      Variables{"LD_PRELOAD=/opt/dtrun_listen.so:mine.so", "DTRUN_LISTEN_IN=127.0.0.1/32"});
  call.listener = "/opt/my programs/dtrun_listen.so";
  CHECK(prepared() == Variables{"LD_PRELOAD=mine.so"});
}

TEST_CASE("a job that survives the loss of a host starts ssh through dtrun_reach") {
  EngineCall call = TwoRanks();
  call.reacher = "/opt/dtrun_reach";
  CHECK_THAT(ShellLine(MpirunArgv(call)), !Contains("dtrun_reach"));
  call.recovers = true;
  CHECK_THAT(ShellLine(MpirunArgv(call)), Contains("--mca plm_rsh_agent '/opt/dtrun_reach ssh'"));
  call.reach.remote_shell = "rsh";
  CHECK_THAT(ShellLine(MpirunArgv(call)), !Contains("dtrun_reach"));
  call.reach.remote_shell = "";
  call.reacher = "/opt/my tools/dtrun_reach";  // Open MPI would run /opt/my
  CHECK_THAT(ShellLine(MpirunArgv(call)), !Contains("dtrun_reach"));
}

TEST_CASE("mpirun gets environment variables by name and without values") {
  EngineCall call = TwoRanks();
  call.exported = {"DTRUN_JOB", "HOME"};
  CHECK_THAT(ShellLine(MpirunArgv(call)), Contains("-x DTRUN_JOB -x HOME"));
}

TEST_CASE("a user's option replaces dtrun's own because mpirun refuses an option given twice") {
  EngineCall call = TwoRanks();
  call.mpi_args = {"--mca", "orte_keep_fqdn_hostnames", "0", "--bind-to", "core"};
  const Words argv = MpirunArgv(call);
  CHECK(std::count(argv.begin(), argv.end(), "orte_keep_fqdn_hostnames") == 1);
  CHECK(std::count(argv.begin(), argv.end(), "--bind-to") == 1);
  CHECK(std::count(argv.begin(), argv.end(), "odls_base_sigkill_timeout") == 1);
}

TEST_CASE("an IPv6 host is refused unless it is this machine's loopback address") {
  EngineCall call = TwoRanks();
  call.placement = {{"[::1]", 2}};
  CHECK_THAT(ShellLine(MpirunArgv(call)), Contains("-H localhost:2"));
  call.placement = {{"[fd00::1]", 2}};
  CHECK_THROWS_AS(MpirunArgv(call), UsageError);
}

TEST_CASE("marked words contain no option of mpirun and are restored unchanged") {
  const Words words = {"", ":", "--tune", "-am", "+x", "++"};
  CHECK(MarkWords(words) == Words{"+", "+:", "+--tune", "+-am", "++x", "+++"});
  CHECK(UnmarkWords(MarkWords(words)) == words);
}

TEST_CASE(
    "ssh runs without prompts or forwarding and a silent host is lost after the host timeout") {
  EngineCall call = TwoRanks();
  call.placement = {{"h1", 1}, {"h2", 1}};
  call.reach = {
      .ssh_port = 2222,
      .ssh_identity = "/k",
      .ssh_arguments = {"-o", "ConnectionAttempts=10"},
      .connect_timeout_s = 9,
      .networks = {"10.1.0.0/16"}};
  const std::string line = ShellLine(MpirunArgv(call));
  CHECK_THAT(
      line, Contains("plm_rsh_args '-x -a -o BatchMode=yes -o ConnectTimeout=9 -p 2222 -i /k -o "
                     "ConnectionAttempts=10'") &&
                Contains("oob_tcp_if_include 10.1.0.0/16") &&
                Contains("btl_tcp_if_include 10.1.0.0/16") &&
                Contains("oob_tcp_keepalive_time 15 --mca oob_tcp_keepalive_intvl 5 --mca "
                         "oob_tcp_keepalive_probes 3"));
  call.reach.by_ssh = false;
  CHECK_THAT(ShellLine(MpirunArgv(call)), !Contains("plm_rsh_args"));
  call.only_this_machine = true;
  CHECK_THAT(ShellLine(MpirunArgv(call)), !Contains("keepalive"));
}

TEST_CASE("only Open MPI 4 and 5 are supported") {
  CHECK(OpenMpiOf("mpirun (Open MPI) 4.1.4") == 4);
  CHECK(OpenMpiOf("mpirun (Open MPI) 5.0.8") == 5);
  CHECK(OpenMpiOf("mpirun (Open MPI) 3.1.6") == 0);
  CHECK(OpenMpiOf("mpirun (Open MPI) 40.1") == 0);
  CHECK(OpenMpiOf("HYDRA build details:") == 0);
  CHECK(OpenMpiOf("") == 0);
}

TEST_CASE("the mpirun of Open MPI 5 gets the names that prterun knows") {
  EngineCall call = TwoRanks();
  call.placement = {{"h1", 1}, {"h2", 1}};
  call.daemon = "/opt/dtrun_daemon";
  call.remote_folder = "0a1b";
  call.reach = {.networks = {"10.1.0.0/16"}};
  call.recovers = true;
  call.exported = {"HOME"};
  call.mpi_args = {"--prtemca", "odls_base_num_threads", "2"};
  const std::string line = ShellLine(MpirunArgv(call, 5));
  CAPTURE(line);
  for (const char* words :
       {" --prtemca prte_execute_quiet 1 ", " --prtemca prte_local_tmpdir_base /tmp/job ",
        " --prtemca prte_launch_agent '/opt/dtrun_daemon 0a1b - prted' ",
        " --prtemca plm_ssh_args '-x -a ", " --prtemca plm_ssh_no_tree_spawn 1 ",
        " --prtemca prte_if_include 10.1.0.0/16 ", " --mca btl_tcp_if_include 10.1.0.0/16 ",
        " --runtime-options recoverable ", " --map-by seq ", " -x HOME "})
    CHECK_THAT(line, Contains(words));
  for (const char* words : {"orte", "rsh", " -q ", "sigkill", "odls_base_num_threads 0"})
    CHECK_THAT(line, !Contains(words));
}

}  // namespace
}  // namespace dtrun::launcher
