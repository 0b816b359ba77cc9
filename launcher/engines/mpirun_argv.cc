// Translates a job into an mpirun command line. The options are those of Open MPI 4. The mpirun of
// Open MPI 5 is prterun, which takes most of them under other names (ForOpenMpi5).

#include <algorithm>
#include <string_view>
#include <utility>

#include "base/launch_env.h"
#include "base/text.h"
#include "launcher/engines/mpirun.h"
#include "launcher/hosts/hosts.h"
#include "launcher/support/launch_error.h"
#include "launcher/support/quoting.h"

namespace dtrun::launcher {
namespace {

using Words = std::vector<std::string>;

constexpr char kLoopback[] = "127.0.0.0/8";

// Open MPI 4 splits "[::1]:2" at the wrong colon and asks ssh for the host "[".
std::string EngineHost(const std::string& name) {
  if (name == "[::1]") return "localhost";
  if (name.starts_with('['))
    throw UsageError(base::Text(
        "-H ", name, ": Open MPI takes no IPv6 addresses; give the host's name instead"));
  return name;
}

// With slot counts, mpirun fills the machine it runs on first, regardless of its place in the list.
// With "--map-by seq" mpirun takes one host per rank, in the order of the list.
std::vector<Words> HostOptions(const std::vector<HostSlots>& placement) {
  if (placement.size() == 1) {
    const std::string host = EngineHost(placement[0].name);
    return {{"-H", HostList({{host, placement[0].slots}})}, {"--map-by", "slot"}};
  }
  Words host_of_rank;
  for (const HostSlots& host : placement)
    host_of_rank.insert(host_of_rank.end(), static_cast<size_t>(host.slots), EngineHost(host.name));
  return {{"-H", base::Join(host_of_rank, ",")}, {"--map-by", "seq"}};
}

bool IsMca(const std::string& word) {
  return word == "--mca" || word == "-mca" || word == "--gmca" || word == "-gmca" ||
         word == "--prtemca";
}

// mpirun refuses a repeated MCA parameter, so the user's value replaces dtrun's.
bool Sets(const Words& user, const Words& option) {
  for (size_t i = 0; i < user.size(); ++i) {
    if (user[i] == option[0] && !IsMca(option[0])) return true;
    if (IsMca(user[i]) && IsMca(option[0]) && i + 1 < user.size() && user[i + 1] == option[1])
      return true;
  }
  return false;
}

// TCP keepalive probes a silent host three times before the host counts as lost.
std::vector<Words> KeepAlive(int host_timeout_s) {
  constexpr int kProbes = 3;
  const int interval = std::max(1, host_timeout_s / 6);
  return {
      {"--mca", "oob_tcp_keepalive_time", base::Text(host_timeout_s - kProbes * interval)},
      {"--mca", "oob_tcp_keepalive_intvl", base::Text(interval)},
      {"--mca", "oob_tcp_keepalive_probes", base::Text(kProbes)},
  };
}

std::vector<Words> ReachOptions(const Reach& reach) {
  std::vector<Words> options = KeepAlive(reach.host_timeout_s);
  if (reach.by_ssh)
    options.push_back({"--mca", "plm_rsh_args", base::Join(SshArguments(reach), " ")});
  if (reach.networks.empty()) {
    // This is only for MPI's transport: for daemons, Open MPI tries one address after another.
    if (!reach.networks_left_out.empty())
      options.push_back({"--mca", "btl_tcp_if_exclude", base::Join(reach.networks_left_out, ",")});
    return options;
  }
  const std::string networks = base::Join(reach.networks, ",");
  options.push_back({"--mca", "oob_tcp_if_include", networks});
  options.push_back({"--mca", "btl_tcp_if_include", networks});
  return options;
}

std::string DaemonCommand(const EngineCall& call, int open_mpi) {
  const std::string networks = base::Join(call.listen_in, ",");
  return base::Text(
      call.daemon, ' ', call.remote_folder, ' ', networks.empty() ? "-" : networks, ' ',
      MpirunDaemon(open_mpi));
}

std::vector<Words> OwnOptions(const EngineCall& call, int open_mpi) {
  std::vector<Words> options = {
      {"-np", base::Text(base::RankCount(call.placement))},
      {"--oversubscribe"},
      {"--bind-to", "none"},  // the wrapper binds, with the CPUs of its host
      {"--stdin", "none"},
      {"--mca", "orte_keep_fqdn_hostnames", "1"},
      {"--mca", "orte_local_tmpdir_base", call.folder},
      // Sets the time before SIGTERM and the time between SIGTERM and SIGKILL.
      {"--mca", "odls_base_sigkill_timeout", "0"},
      // A rank dies with the thread that forked it, so mpirun's main thread must fork it.
      {"--mca", "odls_base_num_threads", "0"},
      // Makes mpirun log which rank has called MPI_Abort (Sort). Its exit code does not tell.
      {"--mca", "state_base_verbose", "1"},
  };
  for (const Words& option : HostOptions(call.placement)) options.push_back(option);
  // Otherwise mpirun requires an ssh even without other hosts.
  if (call.only_this_machine) {
    options.push_back({"--mca", "plm", "isolated"});
    if (!call.transports.empty()) options.push_back({"--mca", "btl", call.transports});
    if (!call.listen_in.empty()) options.push_back({"--mca", "btl_tcp_if_include", kLoopback});
  } else {
    for (const Words& option : ReachOptions(call.reach)) options.push_back(option);
    // A prted that starts others cuts their plm_ssh_args at the first "=".
    if (open_mpi == 5) options.push_back({"--mca", "plm_rsh_no_tree_spawn", "1"});
    // The user may have set it under the name of Open MPI 4.
    if (open_mpi == 5 && !call.reach.remote_shell.empty())
      options.push_back({"--mca", "plm_rsh_agent", call.reach.remote_shell});
    // Open MPI splits the command at blanks.
    if (!call.daemon.empty() && call.daemon.find(' ') == std::string::npos)
      options.push_back({"--mca", "orte_launch_agent", DaemonCommand(call, open_mpi)});
  }
  if (call.recovers) {
    options.push_back({"--mca", "orte_enable_recovery", "1"});
    // Open MPI splits the command at blanks, and a list of commands at colons.
    if (call.reach.remote_shell.empty() && call.reacher.find_first_of(" :") == std::string::npos)
      options.push_back({"--mca", "plm_rsh_agent", call.reacher + " ssh"});
  }
  if (call.quiet) options.push_back({"-q"});
  if (call.as_root) options.push_back({"--allow-run-as-root"});
  for (const std::string& name : call.exported) options.push_back({"-x", name});
  return options;
}

// An option as the mpirun of Open MPI 5 takes it; empty: it has none.
Words ForOpenMpi5(const Words& option) {
  if (option[0] == "-q") return {"--prtemca", "prte_execute_quiet", "1"};
  if (option[0] != "--mca" || option[1].starts_with("btl")) return option;
  if (option[1] == "plm" || option[1] == "odls_base_sigkill_timeout") return {};
  if (option[1] == "orte_enable_recovery") return {"--runtime-options", "recoverable"};
  return {"--prtemca", NameInOpenMpi5(option[1]), option[2]};
}

}  // namespace

std::vector<std::string> MpirunArgv(const EngineCall& call, int open_mpi) {
  Words argv = {call.file};
  for (const Words& each : OwnOptions(call, open_mpi)) {
    const Words option = open_mpi == 5 ? ForOpenMpi5(each) : each;
    if (!option.empty() && (option[0] == "-x" || !Sets(call.mpi_args, option)))
      Append(argv, option);
  }
  Append(argv, call.mpi_args);
  Append(argv, {call.wrapper});
  Append(argv, MarkWords(call.program));
  return argv;
}

std::string NameInOpenMpi5(const std::string& parameter) {
  constexpr std::pair<std::string_view, std::string_view> kStarts[] = {
      {"orte_", "prte_"}, {"plm_rsh_", "plm_ssh_"}, {"oob_tcp_if_", "prte_if_"}};
  for (const auto& [old, now] : kStarts)
    if (parameter.starts_with(old)) return std::string(now) + parameter.substr(old.size());
  return parameter;
}

std::string MpirunDaemon(int open_mpi) { return open_mpi == 5 ? "prted" : "orted"; }

int OpenMpiOf(const std::string& version) {
  for (const int number : {4, 5})
    if (version.starts_with(base::Text("mpirun (Open MPI) ", number, '.'))) return number;
  return 0;
}

}  // namespace dtrun::launcher
