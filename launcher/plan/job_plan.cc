// PlanRanks places the ranks and sets their environment. PlanCommand finds the programs of the job.
// SettleNetworks chooses the networks, after all hosts have reported theirs.

#include "launcher/plan/job_plan.h"

#include <netdb.h>
#include <sys/ioctl.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>

#include "base/launch_env.h"
#include "base/listen_filter.h"
#include "base/options.h"
#include "base/text.h"
#include "base/version.h"
#include "launcher/engines/executables.h"
#include "launcher/engines/mpirun.h"
#include "launcher/hosts/hosts.h"
#include "launcher/networks/network_survey.h"
#include "launcher/plan/rank_environment.h"
#include "launcher/support/launch_error.h"
#include "launcher/support/quoting.h"

namespace dtrun::launcher {
namespace {

using base::HostSlots;
using base::Text;
using Words = std::vector<std::string>;

std::string RandomHex(size_t bytes) {
  std::vector<unsigned char> bits(bytes);
  if (getrandom(bits.data(), bytes, 0) != static_cast<ssize_t>(bytes))
    throw LaunchError(
        ExitCode::kInternal, Text("cannot get random numbers: ", std::strerror(errno)));
  std::string name;
  for (unsigned char byte : bits) {
    char hex[3];
    std::snprintf(hex, sizeof hex, "%02x", byte);
    name += hex;
  }
  return name;
}

// The ranks after the servers are the workers. A job needs at least one worker.
void CheckServers(int servers, const std::vector<HostSlots>& placement) {
  const int ranks = base::RankCount(placement);
  if (servers >= ranks)
    throw UsageError(Text(
        "--ps ", servers, ": found ", ranks, ranks == 1 ? " rank" : " ranks",
        "; expected at least ", int64_t{servers} + 1,
        ", because the ranks after the parameter servers are the workers"));
}

// The columns of a line that remain for a rank's text after the prefix.
int TerminalColumns(const OutputOptions& output) {
  constexpr int kTagColumns = 20, kStampColumns = 24, kFewest = 20;
  if (!isatty(STDOUT_FILENO)) return 0;
  winsize size = {};
  const bool known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  const int taken =
      (output.tag == Tag::kNone ? 0 : kTagColumns) + (output.timestamps ? kStampColumns : 0);
  return std::max(kFewest, (known ? size.ws_col : 80) - taken);
}

// Sets the variable for all ranks, also on other hosts.
void SetForAll(const std::string& name, const std::string& value, Plan& plan) {
  Set(plan.environment, name, value);
  plan.call.exported.push_back(name);
}

std::string OwnPath() { return base::ProcessEnv("PATH").value_or("/usr/local/bin:/usr/bin:/bin"); }

// If this process is a rank of an outer job, removes the variables that dtrun and mpirun set for
// that rank. With them, mpirun would refuse to run. The user's own values of these variables are
// removed too, because they cannot be told apart.
void ForgetOuterJob(const LaunchEngine& engine, Variables& environment) {
  const bool in_job = Has(environment, base::LaunchVariables()[0]);
  for (const std::string& name : base::LaunchVariables()) Unset(environment, name);
  engine.CleanEnvironment(environment);
  if (!in_job) return;
  for (const std::string& name : RankVariableNames()) Unset(environment, name);
  std::erase_if(environment, [](const std::string& variable) {
    return (variable.starts_with("OMPI_") && !variable.starts_with("OMPI_ALLOW_")) ||
           variable.starts_with("PMIX_");
  });
}

void SayRendezvous(const std::string& job, Plan& plan) {
  const HostSlots first = plan.call.placement[0];
  plan.chooses_master_address = !Has(plan.environment, kMasterAddress);
  if (plan.chooses_master_address)
    SetForAll(kMasterAddress, AddressOf(first.name, plan.call.only_this_machine), plan);
  if (Has(plan.environment, kMasterPort)) return;
  const bool first_is_here = IsHere(first.name);
  const unsigned random = static_cast<unsigned>(std::stoul(job.substr(0, 7), nullptr, 16));
  const int port = ChoosePort(
      random, first.slots, [&](int p) { return !first_is_here || IsFreePort(p); },
      base::ParsePortRange(ValueOf(plan.environment, base::OptionVariable("tcp_ports")))
          .value_or(base::PortRange{}));
  SetForAll(kMasterPort, Text(port), plan);
}

std::vector<HostSlots> PlacementOf(const Options& options, const std::vector<Host>& hosts) {
  if (hosts.empty())
    throw UsageError("-np is missing: say how many ranks to start, such as dtrun -np 2 program");
  const int ranks = options.ranks > 0 ? options.ranks : static_cast<int>(SlotCount(hosts));
  return PlaceRanks(hosts, ranks, options.oversubscribe);
}

void PlanEnvironment(const Options& options, Plan& plan) {
  plan.environment = OwnVariables();
  ForgetOuterJob(*plan.call.engine, plan.environment);
  for (const std::string& name : options.exported)
    if (!Has(plan.environment, name))
      throw UsageError(Text("-x ", name, ": this variable is not set"));
  plan.job = RandomHex(16);
  const bool without_mpi = options.servers > 0 || plan.call.engine->joins_by_secret();
  const bool may_span_hosts = plan.call.placement.size() > 1 || !plan.call.only_this_machine;
  if (without_mpi && may_span_hosts) plan.secret = RandomHex(32);
  for (const auto& [name, value] : base::WriteLaunchEnv(
           {.job = plan.job,
          .version = base::kVersion,
          .hosts = plan.call.placement,
          .terminal_columns = TerminalColumns(options.output),
          .threads = options.threads,
          .bind = BindName(options.bind),
          .verbose = options.verbose,
          .timeline = !options.timeline.empty(),
          .corruptions = CorruptionsIn(plan.faults),
          .servers = options.servers,
          .evaluator = options.evaluator,
          .restarts = options.restarts > 0 && !plan.call.engine->starts_again(),
          .starts_again = options.restarts > 0 && plan.call.engine->starts_again(),
          .launch_size = options.restarts > 0 ? base::RankCount(plan.call.placement) : 0}))
    SetForAll(name, value, plan);
  for (const auto& [name, value] : options.knobs) SetForAll(name, value, plan);
  SayRendezvous(plan.job, plan);
  const ForwardingRules rules = {options.exported, options.env_deny, options.env_allow};
  Words names = options.exported;
  if (!plan.call.only_this_machine) {
    const Words forwarded = ForwardedNames(plan.environment, rules);
    names.insert(names.end(), forwarded.begin(), forwarded.end());
  }
  for (const std::string& name : names)
    if (std::find(plan.call.exported.begin(), plan.call.exported.end(), name) ==
        plan.call.exported.end())
      plan.call.exported.push_back(name);
}

// The user's value of a parameter of Open MPI 4, under its name there or in Open MPI 5; nullopt:
// none. The command line wins.
std::optional<std::string> FindParameter(const std::string& parameter, const Plan& plan) {
  const Words& words = plan.call.mpi_args;
  const Words names = {parameter, NameInOpenMpi5(parameter)};
  for (const std::string& name : names) {
    const auto named = std::find(words.begin(), words.end(), name);
    if (named != words.end()) return named + 1 != words.end() ? named[1] : "";
  }
  for (const std::string& name : names)
    for (const std::string& variable : Words{"OMPI_MCA_" + name, "PRTE_MCA_" + name})
      if (Has(plan.environment, variable)) return ValueOf(plan.environment, variable);
  return std::nullopt;
}

std::string ParameterOf(const std::string& parameter, const Plan& plan) {
  return FindParameter(parameter, plan).value_or("");
}

bool IsSetFor(const std::string& parameter, const Plan& plan) {
  return FindParameter(parameter, plan).has_value();
}

// Without this check, ssh would report a missing key once per host and go on with other keys. Names
// that ssh expands are not checked.
void CheckIdentity(const std::string& file) {
  if (file.empty() || file.front() == '~' || file.find_first_of("%$") != std::string::npos) return;
  if (access(file.c_str(), R_OK) != 0)
    throw UsageError(Text(
        "--ssh-identity ", ShellQuoted(file), ": ", std::strerror(errno),
        "; expected the file of a private key"));
}

}  // namespace

// Some options do not work for a rank that is started again.
void CheckElastic(const Options& options) {
  const std::string min = Text("--min-np ", options.min_ranks),
                    max = Text("--max-np ", options.max_ranks);
  const std::string wish = options.min_ranks > 0        ? min
                           : options.max_ranks > 0      ? max
                           : !options.discovery.empty() ? "--host-discovery-script"
                                                        : "";
  if (options.orphan_grace_s > 0 && options.stdin_to_rank_0)
    throw UsageError(Text(
        "--orphan-grace ", options.orphan_grace_s,
        ": found --stdin 0; expected one of the two, because a lost dtrun takes its stdin along"));
  if (options.restarts == 0) {
    if (!wish.empty())
      throw UsageError(wish + " needs --restarts N: without it, a lost rank ends the job");
    return;
  }
  const auto refuse = [](const std::string& given, const char* option, const char* why) {
    throw UsageError(Text(given, ": found ", option, "; expected one of the two, because ", why));
  };
  const std::string restarts = Text("--restarts ", options.restarts);
  if (options.servers > 0)
    refuse(restarts, "--ps", "a job with parameter servers goes on without a worker");
  if (options.stdin_to_rank_0)
    refuse(restarts, "--stdin 0", "rank 0 cannot read its input a second time");
  if (!options.discovery.empty() && (!options.hosts.empty() || !options.hostfile.empty()))
    refuse(
        "--host-discovery-script", options.hosts.empty() ? "--hostfile" : "-H",
        "each names all hosts");
  if (options.max_ranks > 0 && options.discovery.empty())
    throw UsageError(max + " needs --host-discovery-script, which names further hosts");
  if (options.ranks > 0 && options.min_ranks > options.ranks)
    throw UsageError(Text(min, ": expected at most -np, which is ", options.ranks));
  if (options.max_ranks > 0 && options.max_ranks < std::max(options.ranks, options.min_ranks))
    throw UsageError(Text(
        max, ": expected at least ", options.ranks > 0 ? "-np, which is " : "--min-np, which is ",
        std::max(options.ranks, options.min_ranks)));
}

std::string OwnHostName() {
  char name[HOST_NAME_MAX + 1] = {};
  gethostname(name, HOST_NAME_MAX);
  return name;
}

// The resolver knows this host's domain even if the kernel does not.
bool IsHere(const std::string& host) {
  const std::string own_name = OwnHostName();
  if (IsThisMachine(host, own_name)) return true;
  if (!host.starts_with(own_name + ".")) return false;
  addrinfo hints = {};
  hints.ai_flags = AI_CANONNAME;
  addrinfo* found = nullptr;
  if (getaddrinfo(own_name.c_str(), nullptr, &hints, &found) != 0) return false;
  const std::string full_name = found->ai_canonname != nullptr ? found->ai_canonname : "";
  freeaddrinfo(found);
  return IsThisMachine(host, full_name);
}

std::string AddressOf(const std::string& host, bool only_this_machine) {
  if (only_this_machine) return "127.0.0.1";
  if (IsHere(host)) return OwnHostName();
  return host.starts_with('[') ? host.substr(1, host.size() - 2) : host;
}

Variables OwnVariables() {
  Variables variables;
  for (char** variable = environ; *variable != nullptr; ++variable)
    variables.emplace_back(*variable);
  return variables;
}

Reach PlanReach(const Options& options, const Plan& plan) {
  Reach reach;
  reach.by_ssh = !IsSetFor("plm_rsh_agent", plan);
  if (!reach.by_ssh && (options.ssh_port > 0 || !options.ssh_identity.empty()))
    throw UsageError(
        "found --ssh-port or --ssh-identity together with plm_rsh_agent of Open MPI; expected one "
        "of the two");
  CheckIdentity(options.ssh_identity);
  reach.remote_shell = ParameterOf("plm_rsh_agent", plan);
  if (const std::string own = plan.call.engine->remote_shell(); !own.empty()) {
    if (options.ssh_port > 0 || !options.ssh_identity.empty())
      throw UsageError(Text(
          "found --ssh-port or --ssh-identity; expected neither with --launcher ",
          plan.call.engine->name(), ", which does not use ssh"));
    reach.by_ssh = false;
    reach.remote_shell = own;
    reach.parses_command = false;
  }
  reach.ssh_port = options.ssh_port;
  reach.ssh_identity = options.ssh_identity;
  for (const std::string& word : base::Split(ParameterOf("plm_rsh_args", plan), ' '))
    if (!word.empty()) reach.ssh_arguments.push_back(word);
  // A host that can be lost alone must not lead to others.
  const bool may_lose_hosts = options.restarts > 0 || options.servers > 0;
  if (reach.by_ssh && !may_lose_hosts) reach.fanout = static_cast<size_t>(options.fanout);
  // A host that is waited for is asked again and again; one that another host cannot reach is asked
  // by dtrun.
  constexpr int kLongestTry = 10;
  const bool tries_again =
      options.host_wait_s > 0 || (reach.fanout > 0 && plan.call.placement.size() > reach.fanout);
  reach.connect_timeout_s =
      tries_again ? std::min(options.start_timeout_s, kLongestTry) : options.start_timeout_s;
  reach.host_timeout_s = options.host_timeout_s;
  return reach;
}

std::vector<bool> OnThisMachine(const std::vector<HostSlots>& placement) {
  std::vector<bool> here;
  for (const HostSlots& host : placement) here.push_back(IsHere(host.name));
  return here;
}

namespace {

std::vector<HostSlots> SparesOf(
    const std::vector<Host>& hosts, const std::vector<HostSlots>& placement) {
  std::vector<HostSlots> spares;
  for (const Host& host : hosts) {
    const bool has_ranks = std::any_of(placement.begin(), placement.end(), [&](const auto& used) {
      return used.name == host.name;
    });
    if (!has_ranks) spares.push_back({host.name, host.slots});
  }
  return spares;
}

}  // namespace

Plan PlanRanks(const Options& options, const std::vector<Host>& hosts) {
  Plan plan;
  plan.call.placement = PlacementOf(options, hosts);
  plan.call.on_this_machine = OnThisMachine(plan.call.placement);
  const std::vector<bool>& here = plan.call.on_this_machine;
  for (size_t i = 0; i < here.size(); ++i)
    plan.ranks_here += here[i] ? plan.call.placement[i].slots : 0;
  // Other hosts may come later.
  plan.call.only_this_machine =
      plan.ranks_here == base::RankCount(plan.call.placement) && options.discovery.empty();
  plan.call.mpi_args = options.mpi_args;
  plan.call.restarts = options.restarts > 0;
  CheckElastic(options);
  plan.call.engine =
      options.engine != nullptr ? options.engine : &ChooseLaunchEngine(plan.call, OwnPath());
  plan.call.engine = &plan.call.engine->VersionIn(OwnPath());
  if (plan.call.restarts && !plan.call.only_this_machine)
    plan.spares = SparesOf(hosts, plan.call.placement);
  for (const Host& host : hosts) plan.listed.push_back({host.name, host.slots});
  const std::string why_not = plan.call.engine->Probe(plan.call);
  if (!why_not.empty()) throw UsageError(why_not);
  CheckServers(options.servers, plan.call.placement);
  plan.output = options.output;
  if (!options.shown_ranks.empty())
    plan.output.ranks = ParseRankList(options.shown_ranks, base::RankCount(plan.call.placement));
  if (!options.inject.empty())
    plan.faults = ParseFaults(options.inject, base::RankCount(plan.call.placement), plan.listed);
  PlanEnvironment(options, plan);
  return plan;
}

Plan PlanStartAgain(Plan plan, const Restart& restart) {
  plan.call.placement = restart.placement;
  plan.call.on_this_machine = OnThisMachine(restart.placement);
  for (const std::string& variable : restart.variables) {
    const std::string name = NameOf(variable);
    Set(plan.environment, name, variable.substr(name.size() + 1));
    Words& exported = plan.call.exported;
    if (std::find(exported.begin(), exported.end(), name) == exported.end())
      exported.push_back(name);
  }
  return plan;
}

namespace {

constexpr const char* kParameters[] = {
    "btl_tcp_if_include", "btl_tcp_if_exclude", "oob_tcp_if_include", "oob_tcp_if_exclude"};

// The parameter files of Open MPI, the user's first.
Words ParameterFiles(const Plan& plan) {
  const std::filesystem::path prefix = std::filesystem::path(plan.call.file) / "../..";
  return {
      base::ProcessEnv("HOME").value_or("") + "/.openmpi/mca-params.conf",
      base::ProcessEnv("HOME").value_or("") + "/.prte/mca-params.conf",
      prefix.lexically_normal() / "etc/openmpi-mca-params.conf",
      prefix.lexically_normal() / "etc/prte-mca-params.conf",
      "/etc/openmpi/openmpi-mca-params.conf"};
}

// The value of a line such as "btl_tcp_if_exclude = lo" in the first file that has one.
std::optional<std::string> ValueInFiles(const std::string& parameter, const Plan& plan) {
  constexpr char kBlanks[] = " \t\r";
  for (const std::string& file : ParameterFiles(plan)) {
    std::ifstream stream(file);
    std::optional<std::string> value;  // the last line wins
    for (std::string line; std::getline(stream, line);) {
      const size_t begin = line.find_first_not_of(kBlanks);
      if (begin == std::string::npos || line.compare(begin, parameter.size(), parameter) != 0)
        continue;
      const size_t equals = line.find_first_not_of(kBlanks, begin + parameter.size());
      if (equals == std::string::npos || line[equals] != '=') continue;
      const size_t first = line.find_first_not_of(kBlanks, equals + 1);
      value = first == std::string::npos
                  ? ""
                  : line.substr(first, line.find_last_not_of(kBlanks) + 1 - first);
    }
    if (value) return value;
  }
  return std::nullopt;
}

// The parameter for networks that the user sets; nullopt: none. Open MPI refuses a list to include
// together with a list to exclude, from any source.
std::optional<std::string> WhatUserSets(const Plan& plan) {
  for (const std::string parameter : kParameters)
    if (IsSetFor(parameter, plan) || ValueInFiles(parameter, plan) ||
        ValueInFiles(NameInOpenMpi5(parameter), plan))
      return parameter;
  return std::nullopt;
}

// The ranks of one host need no TCP if /dev/shm has room for their shared memory. For each rank,
// Open MPI takes 4 MiB; dtrun requires 8 MiB. A user's list of transports to use stays; a list of
// transports to leave out gets tcp added.
std::string TransportsWithoutTcp(const Plan& plan) {
  constexpr uintmax_t kRoomOfRank = 8 << 20;
  std::error_code error;
  const std::filesystem::space_info memory = std::filesystem::space("/dev/shm", error);
  const auto ranks = static_cast<uintmax_t>(base::RankCount(plan.call.placement));
  if (error || memory.available < ranks * kRoomOfRank || IsSetFor("btl", plan)) return "";
  const std::string said = ValueInFiles("btl", plan).value_or("");
  if (said.empty()) return "^tcp";
  return said.starts_with('^') ? said + ",tcp" : "";
}

void PlanDaemons(Plan& plan) {
  plan.call.listener = FindHelper("dtrun_listen.so");
  if (!plan.call.only_this_machine) {
    if (!IsSetFor("orte_launch_agent", plan)) plan.call.daemon = FindHelper("dtrun_daemon");
    return;
  }
  if (WhatUserSets(plan)) return;
  plan.call.listen_in = {"127.0.0.1/32"};
  plan.call.transports = TransportsWithoutTcp(plan);
}

}  // namespace

void PlanCommand(const Options& options, Plan& plan) {
  const std::string path = OwnPath();
  plan.call.program = options.program;
  plan.call.program.front() = FindProgram(options.program.front(), path);
  plan.call.file = plan.call.engine->Find(path);
  plan.call.wrapper = FindHelper("dtrun_rank");
  plan.agent = FindHelper("dtrun_agent");
  plan.call.reach = PlanReach(options, plan);
  plan.wanted_networks = options.networks;
  CheckWantedNetworks(plan);
  plan.call.as_root = geteuid() == 0;
  if (!plan.call.only_this_machine) plan.call.remote_folder = RandomHex(8);
  if (!plan.call.engine->is_own()) PlanDaemons(plan);
  plan.call.recovers = options.servers > 0;
  if (plan.call.recovers) plan.call.reacher = FindHelper("dtrun_reach");
  plan.call.quiet = !options.verbose;
}

namespace {

std::vector<std::string> Apply(NetworkChoice choice, Plan& plan) {
  const bool wanted = !plan.wanted_networks.empty();
  const auto parameter = plan.call.engine->is_own() ? std::nullopt : WhatUserSets(plan);
  if (wanted && parameter && parameter->ends_with("_exclude"))
    throw UsageError(Text(
        "found --network-interfaces together with ", *parameter,
        " of Open MPI; expected one of the two"));
  if (!wanted && parameter) return {Text("Open MPI uses the networks that ", *parameter, " says")};
  plan.call.reach.networks = choice.include;
  plan.call.reach.networks_left_out = choice.exclude;
  plan.call.listen_in = choice.include;
  return choice.reasons;
}

}  // namespace

std::vector<std::string> SettleNetworks(const std::vector<HostNetworks>& hosts, Plan& plan) {
  if (plan.call.only_this_machine) return {};
  const std::vector<std::string>& wanted = plan.wanted_networks;
  const NetworkChoice choice =
      wanted.empty() ? ChooseNetworks(hosts) : UseNetworks(hosts, wanted, OwnInterfaces());
  const std::string& first = choice.addresses.front();
  plan.addresses = choice.addresses;
  std::vector<std::string> reasons = Apply(choice, plan);
  if (plan.chooses_master_address && !first.empty()) {
    Set(plan.environment, kMasterAddress, first);
    reasons.push_back(Text(kMasterAddress, " is ", first, ", of ", hosts.front().host));
  }
  return reasons;
}

std::vector<std::string> GuessNetworks(Plan& plan) {
  if (plan.call.only_this_machine) return {};
  std::vector<std::string> names, lines;
  for (const base::HostSlots& host : plan.call.placement) names.push_back(host.name);
  if (plan.wanted_networks.empty()) {
    const std::vector<std::string> reasons =
        Apply(ChooseNetworks(SurveyFromHere(names, OnThisMachine(plan.call.placement))), plan);
    lines = {reasons.front()};
    if (reasons.size() > 1) lines.push_back(reasons.back());
  } else {
    Apply({.include = WantedNetworks(plan.wanted_networks, OwnInterfaces())}, plan);
  }
  lines.push_back("a job asks each host for its networks before it starts a rank");
  return lines;
}

void CheckWantedNetworks(const Plan& plan) {
  if (!plan.call.only_this_machine || plan.wanted_networks.empty()) return;
  const std::vector<Interface> here = OwnInterfaces();
  CheckNames({{"this host", here, {}}}, plan.wanted_networks, here);
}

}  // namespace dtrun::launcher
