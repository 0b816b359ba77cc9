// The engines without MPI. dtrun_local (dtrun_local.cc) starts the ranks: those of this host as its
// children, those of other hosts through ssh, srun, qrsh or hydra and another dtrun_local there.

#include <algorithm>
#include <fstream>
#include <iterator>

#include "base/launch_env.h"
#include "base/text.h"
#include "launcher/engines/executables.h"
#include "launcher/engines/launch_engine.h"
#include "launcher/hosts/cluster_environment.h"
#include "launcher/hosts/hosts.h"
#include "launcher/support/launch_error.h"
#include "launcher/support/quoting.h"

namespace dtrun::launcher {
namespace {

using base::Text;
using Words = std::vector<std::string>;

class WithoutMpi : public LaunchEngine {
 public:
  std::string program() const override { return "dtrun_local"; }
  bool is_own() const override { return true; }
  bool joins_by_secret() const override { return true; }
  bool starts_again() const override { return false; }
  std::string more_words() const override { return ""; }
  bool blames_lost_ranks() const override { return false; }
  std::string remote_shell() const override { return ""; }

  bool IsInstalled(const std::string&) const override { return true; }
  std::string Find(const std::string&) const override { return FindHelper(program()); }

  std::string Probe(const EngineCall& call) const override {
    if (call.mpi_args.empty()) return "";
    return Text("--mpi-args needs mpirun; expected no --mpi-args with --launcher ", name());
  }

  // "2 1@h2": two ranks on this machine, then one on h2. In a job of many hosts, they start the
  // ranks of each other.
  Words Argv(const EngineCall& call) const override {
    Words argv = {call.file};
    for (size_t i = 0; i < call.placement.size(); ++i) {
      const HostSlots& host = call.placement[i];
      const bool here = call.only_this_machine || call.on_this_machine.at(i);
      argv.push_back(here ? Text(host.slots) : Text(host.slots, '@', SshHost(host.name)));
    }
    if (!call.only_this_machine) {
      Append(
          argv, {call.reach.parses_command ? "--shell" : "--starter",
                 ShellLine(RemoteShell(call.reach))});
      if (call.reach.fanout > 0 && call.placement.size() > call.reach.fanout)
        Append(argv, {"--fanout", Text(call.reach.fanout)});
      for (const std::string& name : call.exported) Append(argv, {"-x", name});
    }
    Append(argv, {call.wrapper});
    Append(argv, MarkWords(call.program));
    return argv;
  }

  std::string Daemon(const EngineCall&) const override { return ""; }
  void Prepare(const EngineCall&, Variables&) const override {}
  // Open MPI would set these variables anew. Without it they would describe another job.
  void CleanEnvironment(Variables& environment) const override {
    std::erase_if(environment, [](const std::string& variable) {
      return variable.starts_with("OMPI_COMM_WORLD_") || variable.starts_with("PMIX_");
    });
  }

  // An event tells which dtrun_local of another host, or which remote shell, has ended too early:
  //
  //   dtrun_local: lost 1
  //   dtrun_local: disconnected 2
  EngineLine Sort(std::string_view line) const override {
    return line.starts_with(kLost) || line.starts_with(kDisconnected) ? EngineLine::kEvent
                                                                      : EngineLine::kWords;
  }

  EngineEnd Explain(int exit_code, const std::vector<base::HostSlots>&, const std::string& events)
      const override {
    return {
        .none_started =
            {static_cast<int>(events.empty() ? ExitCode::kInternal : ExitCode::kUnavailable),
             Text("no rank could be started (dtrun_local ended with code ", exit_code, ")")},
        .left = " without Shutdown; that ended the job",
        .lost_daemon = events.starts_with(kLost) ? program() : "",
        .unexplained = {exit_code, Text("dtrun_local ended the job with code ", exit_code)},
        .daemon = FirstLost(events)};
  }

 private:
  static constexpr std::string_view kLost = "dtrun_local: lost ";
  static constexpr std::string_view kDisconnected = "dtrun_local: disconnected ";

  // The number of the host in the first event; 0: none.
  static int FirstLost(const std::string& events) {
    const std::string line = events.substr(0, events.find('\n'));
    return static_cast<int>(
        base::ParseInteger(line.substr(line.find_last_of(' ') + 1)).value_or(0));
  }
};

class Local final : public WithoutMpi {
 public:
  std::string name() const override { return "local"; }
  std::string summary() const override { return "one host"; }

  std::string Probe(const EngineCall& call) const override {
    if (call.placement.size() != 1 || !call.only_this_machine)
      return Text(
          "--launcher local starts ranks on this host alone, but the hosts are ",
          HostList(call.placement), "; --launcher ssh and --launcher mpirun reach others");
    return WithoutMpi::Probe(call);
  }
};

// Each agent and each dtrun_local is a job step of one task.
class Srun final : public WithoutMpi {
 public:
  std::string name() const override { return "srun"; }
  std::string summary() const override { return "in Slurm"; }

  // By default, srun passes on whole lines only, waits until no other step has the CPUs, and hands
  // the whole environment to the step. --unbuffered gives the program a terminal that changes no
  // byte. The other options end the effect of the variables of a batch script, and let the step use
  // all CPUs of the job on its host.
  std::string remote_shell() const override {
    return "srun --quiet --unbuffered --overlap --nodes=1 --ntasks=1 --ntasks-per-node=1 "
           "--distribution=block --cpu-bind=none --mpi=none --kill-on-bad-exit=0 "
           "--export=HOME,LOGNAME,PATH,SHELL,USER --nodelist";
  }

  bool IsInstalled(const std::string& path) const override {
    return SearchPath("srun", path).has_value();
  }

  // srun: error: h2: task 0: Exited with exit code 9
  // srun: error: _server_read: fd 11 error reading header: Connection reset by peer
  // srun: error: step_launch_notify_io_failure: aborting, io error with slurmstepd on node 0
  //   The task is an agent or dtrun_local. dtrun names the rank that has failed, or the host whose
  //   connection has ended.
  EngineLine Sort(std::string_view line) const override {
    const auto has = [line](std::string_view words) {
      return line.find(words) != std::string_view::npos;
    };
    const bool repeats = line.starts_with("srun: error: ") &&
                         (has(": Exited with exit code ") || has(": Connection reset by peer") ||
                          has(" step_launch_notify_io_failure: "));
    return repeats ? EngineLine::kIdleWarning : WithoutMpi::Sort(line);
  }

  std::string Probe(const EngineCall& call) const override {
    if (base::ProcessEnv("SLURM_JOB_ID").value_or("").empty())
      return "--launcher srun needs an allocation of Slurm, but SLURM_JOB_ID is not set; start "
             "dtrun in a batch script (sbatch) or in salloc";
    return WithoutMpi::Probe(call);
  }
};

// Each agent and each dtrun_local of another host is a parallel task of the job, and takes a slot.
class Qrsh final : public WithoutMpi {
 public:
  std::string name() const override { return "qrsh"; }
  std::string summary() const override { return "in Grid Engine"; }

  std::string remote_shell() const override { return "qrsh -inherit -noshell"; }

  bool IsInstalled(const std::string& path) const override {
    return SearchPath("qrsh", path).has_value();
  }

  // error: commlib error: got pipe error (closing "h2/shepherd_ijs/1")
  //   The task has ended before qrsh has passed on all of its stdin.
  EngineLine Sort(std::string_view line) const override {
    const bool is_inner = line.starts_with("error: commlib error: got ") &&
                          line.find("/shepherd_ijs/") != std::string_view::npos;
    return is_inner ? EngineLine::kIdleWarning : WithoutMpi::Sort(line);
  }

  std::string Probe(const EngineCall& call) const override {
    const std::string file = base::ProcessEnv("PE_HOSTFILE").value_or("");
    if (file.empty())
      return "--launcher qrsh needs a job of Grid Engine in a parallel environment, but "
             "PE_HOSTFILE is not set; start dtrun in a job script (qsub -pe NAME SLOTS)";
    const std::string host = OtherHostWithOneSlot(file, call);
    if (!host.empty())
      return Text(
          "--launcher qrsh needs two slots on each other host, because dtrun's agent and the "
          "starter of the ranks are tasks of Grid Engine, but ",
          host, " has one; ask for two or more per host, or use --launcher ssh");
    return WithoutMpi::Probe(call);
  }

 private:
  static std::string OtherHostWithOneSlot(const std::string& file, const EngineCall& call) {
    std::ifstream stream(file);
    const std::string text(std::istreambuf_iterator<char>(stream), {});
    if (text.empty()) return "";  // FindHosts says so
    for (const Host& granted : GridEngineHosts(text))
      for (size_t i = 0; i < call.placement.size(); ++i)
        if (call.placement[i].name == granted.name && granted.slots < 2 &&
            !call.on_this_machine.at(i))
          return granted.name;
    return "";
  }
};

class Ssh final : public WithoutMpi {
 public:
  std::string name() const override { return "ssh"; }
  std::string summary() const override { return "several hosts"; }
};

// The mpiexec.hydra of MPICH or Intel MPI starts each agent and each dtrun_local of another host as
// a job of one process, through the site's own way to that host.
class Hydra final : public WithoutMpi {
 public:
  std::string name() const override { return "hydra"; }
  std::string summary() const override { return "MPICH's mpiexec"; }

  std::string remote_shell() const override {
    return "mpiexec.hydra -genvlist HOME,LOGNAME,PATH,SHELL,USER -n 1 -hosts";
  }

  bool IsInstalled(const std::string& path) const override {
    return SearchPath("mpiexec.hydra", path).has_value();
  }

  // [mpiexec@h1] HYDU_sock_write (utils/sock/sock.c:254): write error (Bad file descriptor)
  //   The process on the other host has ended before mpiexec has passed on all of its stdin.
  EngineLine Sort(std::string_view line) const override {
    const bool is_inner = line.starts_with("[mpiexec@") || line.starts_with("[proxy:");
    return is_inner ? EngineLine::kIdleWarning : WithoutMpi::Sort(line);
  }
};

}  // namespace

const LaunchEngine& LocalEngine() {
  static const Local engine;
  return engine;
}

const LaunchEngine& SrunEngine() {
  static const Srun engine;
  return engine;
}

const LaunchEngine& QrshEngine() {
  static const Qrsh engine;
  return engine;
}

const LaunchEngine& SshEngine() {
  static const Ssh engine;
  return engine;
}

const LaunchEngine& HydraEngine() {
  static const Hydra engine;
  return engine;
}

}  // namespace dtrun::launcher
