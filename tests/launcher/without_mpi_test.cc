// The engines that start ranks without MPI, and the choice of an engine.

#include <catch2/catch.hpp>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/text.h"
#include "launcher/engines/launch_engine.h"
#include "launcher/support/quoting.h"
#include "tests/support/subprocess.h"

namespace dtrun::launcher {
namespace {

using Catch::Matchers::Contains;

// Two ranks on this machine, one on h2 and three on an address.
EngineCall SixRanks() {
  EngineCall call;
  call.engine = FindLaunchEngine("ssh");
  call.file = "/opt/dtrun_local";
  call.wrapper = "/opt/dtrun_rank";
  call.placement = {{"h1", 2}, {"h2", 1}, {"[fd00::3]", 3}};
  call.on_this_machine = {true, false, false};
  call.exported = {"DTRUN_JOB", "HF_TOKEN"};
  call.reach = {.ssh_port = 2222, .connect_timeout_s = 9};
  call.program = {"./train", "--epochs", "3"};
  return call;
}

std::string LineOf(const EngineCall& call) { return ShellLine(call.engine->Argv(call)); }

TEST_CASE("dtrun_local gets the ranks of each host and the remote shell and names of variables") {
  CHECK(
      LineOf(SixRanks()) ==
      "/opt/dtrun_local 2 1@h2 3@fd00::3 --shell "
      "'ssh -x -a -o BatchMode=yes -o ConnectTimeout=9 -p 2222 --' -x DTRUN_JOB -x HF_TOKEN "
      "/opt/dtrun_rank +./train +--epochs +3");
}

TEST_CASE("dtrun_local gets the user's remote shell") {
  EngineCall call = SixRanks();
  call.reach.remote_shell = "rsh -l 'a user'";
  CHECK_THAT(LineOf(call), Contains(" --shell 'rsh -l '\\''a user'\\''' -x "));
}

TEST_CASE("a path goes in quotes to a remote shell and as it is to srun") {
  EngineCall call = SixRanks();
  call.reach.remote_shell = "srun --nodelist";
  CHECK(RemotePath(call.reach, "/opt/my dtrun/dtrun_agent") == "'/opt/my dtrun/dtrun_agent'");
  call.reach.parses_command = false;
  CHECK(RemotePath(call.reach, "/opt/my dtrun/dtrun_agent") == "/opt/my dtrun/dtrun_agent");
  CHECK_THAT(LineOf(call), Contains(" --starter 'srun --nodelist' -x "));
}

TEST_CASE("hosts that are all this machine need no remote shell") {
  EngineCall call = SixRanks();
  call.placement = {{"localhost", 2}, {"127.0.0.1", 1}};
  call.on_this_machine = {true, true};
  call.only_this_machine = true;
  CHECK(LineOf(call) == "/opt/dtrun_local 2 1 /opt/dtrun_rank +./train +--epochs +3");
}

TEST_CASE("engines without MPI refuse --mpi-args and only local refuses other hosts") {
  EngineCall call = SixRanks();
  const LaunchEngine& local = *FindLaunchEngine("local");
  CHECK(call.engine->Probe(call).empty());
  CHECK_THAT(local.Probe(call), Contains("the hosts are h1:2,h2:1,[fd00::3]:3; --launcher ssh"));
  call.mpi_args = {"-q"};
  CHECK(
      call.engine->Probe(call) ==
      "--mpi-args needs mpirun; expected no --mpi-args with --launcher ssh");
}

TEST_CASE("a lost dtrun_local or connection is named and its event is not shown") {
  const LaunchEngine& engine = *FindLaunchEngine("ssh");
  const std::string lost = "dtrun_local: lost 2\n", cut = "dtrun_local: disconnected 1\n";
  CHECK(engine.Sort(lost) == EngineLine::kEvent);
  CHECK(engine.Sort(cut) == EngineLine::kEvent);
  CHECK(engine.Sort("dtrun: cannot start rank 1: no memory\n") == EngineLine::kWords);
  CHECK(engine.Explain(69, {}, lost + cut).daemon == 2);
  CHECK(engine.Explain(69, {}, lost + cut).lost_daemon == "dtrun_local");
  CHECK(engine.Explain(69, {}, cut).daemon == 1);
  CHECK(engine.Explain(69, {}, cut).lost_daemon == "");
  CHECK(engine.Explain(9, {}).daemon == 0);
}

TEST_CASE("without mpirun a job takes local or ssh, unless it needs mpirun") {
  const testing::TemporaryFolder folder;
  EngineCall call = SixRanks();
  const auto choice = [&] { return ChooseLaunchEngine(call, folder.path()).name(); };
  CHECK(choice() == "ssh");
  call.mpi_args = {"-q"};
  CHECK(choice() == "mpirun");
  call.mpi_args = {};
  EngineCall here = call;
  here.only_this_machine = true;
  here.placement = {{"localhost", 2}};
  CHECK(ChooseLaunchEngine(here, folder.path()).name() == "local");
  folder.Write("mpirun", "#!/bin/sh\necho HYDRA build details:\n", 0755);
  CHECK(choice() == "ssh");
  for (const char* version : {"4.1.4", "5.0.8"}) {
    folder.Write("mpirun", base::Text("#!/bin/sh\necho 'mpirun (Open MPI) ", version, "'\n"), 0755);
    CHECK(choice() == "mpirun");
  }
}

TEST_CASE("in an allocation of Slurm without mpirun a job takes srun") {
  const testing::TemporaryFolder folder;
  EngineCall call = SixRanks();
  const auto choice = [&] { return ChooseLaunchEngine(call, folder.path()).name(); };
  setenv("SLURM_JOB_ID", "41", 1);
  CHECK(choice() == "ssh");  // srun is not installed
  folder.Write("srun", "#!/bin/sh\n", 0755);
  CHECK(choice() == "srun");
  unsetenv("SLURM_JOB_ID");
  CHECK(choice() == "ssh");
  CHECK_THAT(
      FindLaunchEngine("srun")->Probe(call),
      Catch::Contains("--launcher srun needs an allocation of Slurm") && Catch::Contains("salloc"));
}

TEST_CASE("in a job of Grid Engine without mpirun a job takes qrsh if other hosts have two slots") {
  const testing::TemporaryFolder folder;
  EngineCall call = SixRanks();
  const auto choice = [&] { return ChooseLaunchEngine(call, folder.path()).name(); };
  folder.Write("qrsh", "#!/bin/sh\n", 0755);
  CHECK(choice() == "ssh");  // no job of Grid Engine
  std::string granted;
  for (const base::HostSlots& host : call.placement) granted += host.name + " 2 all.q UNDEFINED\n";
  setenv("PE_HOSTFILE", folder.Write("granted", granted).c_str(), 1);
  CHECK(choice() == "qrsh");
  const std::string last = call.placement.back().name;
  folder.Write("granted", "h 4 all.q UNDEFINED\n" + last + " 1 all.q UNDEFINED\n");
  CHECK(choice() == "ssh");
  CHECK_THAT(
      FindLaunchEngine("qrsh")->Probe(call),
      Catch::Contains("needs two slots on each other host") && Catch::Contains(last + " has one"));
  unsetenv("PE_HOSTFILE");
  CHECK_THAT(FindLaunchEngine("qrsh")->Probe(call), Catch::Contains("PE_HOSTFILE is not set"));
}

TEST_CASE("dtrun does not repeat what srun, qrsh and hydra say about the end of a starter") {
  const LaunchEngine& srun = *FindLaunchEngine("srun");
  for (const char* line :
       {"srun: error: h2: task 0: Exited with exit code 9",
        "srun: error: _server_read: fd 11 error reading header: Connection reset by peer",
        "srun: error: step_launch_notify_io_failure: aborting, io error with slurmstepd on node 0"})
    CHECK(srun.Sort(line) == EngineLine::kIdleWarning);
  CHECK(srun.Sort("srun: error: Unable to create step") == EngineLine::kWords);
  CHECK(srun.Sort("dtrun_local: lost 1") == EngineLine::kEvent);
  const LaunchEngine& qrsh = *FindLaunchEngine("qrsh");
  CHECK(
      qrsh.Sort("error: commlib error: got pipe error (closing \"h2/shepherd_ijs/1\")") ==
      EngineLine::kIdleWarning);
  CHECK(
      qrsh.Sort("error: commlib error: got select error (Connection refused)") ==
      EngineLine::kWords);
  CHECK(qrsh.Sort("dtrun_local: lost 1") == EngineLine::kEvent);
  const LaunchEngine& hydra = *FindLaunchEngine("hydra");
  CHECK(hydra.Sort("[mpiexec@h1] control_cb: assert failed") == EngineLine::kIdleWarning);
  CHECK(hydra.Sort("dtrun_local: lost 1") == EngineLine::kEvent);
}

TEST_CASE("only a host that ssh does not find may answer later") {
  for (const char* words :
       {"ssh: Could not resolve hostname h2: Name or service not known",
        "ssh: connect to host h2 port 22: Connection refused",
        "Connection reset by 10.0.0.2 port 22",
        "kex_exchange_identification: Connection closed by remote host"})
    CHECK(MayAnswerLater(words));
  for (const char* words :
       {"", "me@h2: Permission denied (publickey).", "Host key verification failed.",
        "bash: line 1: /opt/dtrun_agent: No such file or directory"})
    CHECK_FALSE(MayAnswerLater(words));
}

TEST_CASE("an engine's remote shell whose ssh has failed is known by ssh's words") {
  for (const char* words :
       {"ssh: Could not resolve hostname h2: Name or service not known",
        "me@h2: Permission denied (publickey).", "Host key verification failed."})
    CHECK(IsFailureOfSsh(words));
  for (const char* words :
       {"", "srun: job 7 queued and waiting for resources", "Welcome to h2",
        "bash: line 1: /opt/dtrun_agent: No such file or directory"})
    CHECK_FALSE(IsFailureOfSsh(words));
}

}  // namespace
}  // namespace dtrun::launcher
