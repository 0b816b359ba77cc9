// Functions that apply one value to Options, then the table of all options.

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <map>
#include <optional>
#include <set>

#include "base/options.h"
#include "base/text.h"
#include "launcher/cli/option_settings.h"
#include "launcher/engines/launch_engine.h"
#include "launcher/hosts/hosts.h"
#include "launcher/networks/network_choice.h"
#include "launcher/support/environment.h"
#include "launcher/support/launch_error.h"
#include "launcher/support/quoting.h"

namespace dtrun::launcher {
namespace {

using base::Text;
using Kind = OptionKind;

// ---- Functions that apply a value ---------------------------------------------------------------

constexpr int kMaxSeconds = 10'000'000;

template <int Options::*field, int least, int most>
void SetNumber(const OptionRow&, const std::string& text, Options& options) {
  const std::optional<int64_t> number = base::ParseInteger(text);
  if (!number || *number < least || *number > most)
    throw UsageError(Text("expected a whole number from ", least, " to ", most));
  options.*field = static_cast<int>(*number);
}

template <std::string Options::*field>
void SetText(const OptionRow&, const std::string& text, Options& options) {
  if (text.find('\0') != std::string::npos) throw UsageError("expected text without a zero byte");
  options.*field = text;
}

template <bool Options::*field>
void SetFlag(const OptionRow&, const std::string& text, Options& options) {
  if (text != "true" && text != "false") throw UsageError("expected true or false");
  options.*field = text == "true";
}

void SetAttach(const OptionRow&, const std::string& text, Options& options) {
  const bool is_name = std::all_of(text.begin(), text.end(), [](unsigned char letter) {
    return std::isdigit(letter) != 0 || std::islower(letter) != 0;
  });
  if (!is_name || text.size() > 32)
    throw UsageError("expected the name of a job, as dtrun --orphan-grace says it");
  options.action = std::max(options.action, Action::kAttach);
  options.attach = text;
}

template <Action action>
void SetAction(const OptionRow&, const std::string&, Options& options) {
  options.action = std::max(options.action, action);
}

void SetHosts(const OptionRow&, const std::string& text, Options& options) {
  options.hosts = ParseHosts(text);
}

void SetBind(const OptionRow& row, const std::string& text, Options& options) {
  const std::optional<Bind> bind = ParseBind(text);
  if (!bind) throw UsageError(Text("expected one of ", row.value));
  options.bind = *bind;
}

void SetLauncher(const OptionRow& row, const std::string& text, Options& options) {
  options.engine = FindLaunchEngine(text);
  if (options.engine == nullptr) throw UsageError(Text("expected one of ", row.value));
}

// "mpirun|local|ssh"
const char* EngineNames() {
  static const std::string names = [] {
    std::vector<std::string> all;
    for (const LaunchEngine* engine : LaunchEngines()) all.push_back(engine->name());
    return base::Join(all, "|");
  }();
  return names.c_str();
}

const char* EngineHelp() {
  static const std::string help = [] {
    std::vector<std::string> without_mpi;
    for (const LaunchEngine* engine : LaunchEngines())
      if (!engine->summary().empty())
        without_mpi.push_back(Text(engine->name(), " (", engine->summary(), ')'));
    return "what starts the ranks; without MPI: " + base::Join(without_mpi, ", ");
  }();
  return help.c_str();
}

const char* DefaultEngine() {
  static const std::string name = LaunchEngines().front()->name();
  return name.c_str();
}

void AddExported(const OptionRow&, const std::string& text, Options& options) {
  CheckVariableName(text);
  options.exported.push_back(text);
}

template <std::vector<std::string> Options::*field>
void AddPattern(const OptionRow&, const std::string& text, Options& options) {
  CheckVariablePattern(text);
  (options.*field).push_back(text);
}

void SetNetworks(const OptionRow&, const std::string& text, Options& options) {
  options.networks = ParseNetworks(text);
}

void SetStdin(const OptionRow&, const std::string& text, Options& options) {
  if (text != "none" && text != "0")
    throw UsageError("expected none or 0: rank 0 alone can have dtrun's stdin");
  options.stdin_to_rank_0 = text == "0";
}

// mpirun splits plm_rsh_args at spaces and does not support quotes.
void SetSshIdentity(const OptionRow&, const std::string& text, Options& options) {
  if (std::any_of(text.begin(), text.end(), [](unsigned char c) { return c <= ' ' || c == 127; }))
    throw UsageError("Open MPI takes no spaces here; name the key in ~/.ssh/config instead");
  options.ssh_identity = text;
}

void SetMpiArgs(const OptionRow&, const std::string& text, Options& options) {
  options.mpi_args = SplitWords(text);
}

void SetKnob(const OptionRow& row, const std::string& text, Options& options) {
  if (const auto expected = base::ExpectedOption(row.knob, text))
    throw UsageError("expected " + *expected);
  options.knobs.emplace_back(base::OptionVariable(row.knob), text);
}

void SetSwitch(const OptionRow& row, const std::string& text, Options& options) {
  if (text != "true" && text != "false") throw UsageError("expected true or false");
  SetKnob(row, text == "true" ? "on" : "off", options);
}

// The command line takes MiB; the library takes bytes.
void SetMebibytes(const OptionRow& row, const std::string& text, Options& options) {
  if (text == "auto") return SetKnob(row, text, options);
  char* end = nullptr;
  const double bytes = std::strtod(text.c_str(), &end) * (1 << 20);
  const bool is_number =
      !text.empty() && *end == '\0' && std::isdigit(static_cast<unsigned char>(text[0]));
  if (!is_number || !(bytes >= 1) || !(bytes <= std::ldexp(1, 40)))
    throw UsageError("expected auto, or a number of MiB, at most 1048576, such as 4 or 0.5");
  SetKnob(row, Text(std::llround(bytes)), options);
}

void SetTag(const OptionRow&, const std::string& text, Options& options) {
  options.output.tag = ParseTag(text);
}

void SetTimestamps(const OptionRow&, const std::string& text, Options& options) {
  if (text != "true" && text != "false") throw UsageError("expected true or false");
  options.output.timestamps = text == "true";
}

void SetOutputFolder(const OptionRow&, const std::string& text, Options& options) {
  if (text.find('\0') != std::string::npos) throw UsageError("expected text without a zero byte");
  options.output.folder = text;
}

// ---- The table ----------------------------------------------------------------------------------

constexpr char kWhere[] = "Ranks and hosts";
constexpr char kRank[] = "What each rank gets";
constexpr char kLibrary[] = "Knobs of the library";
constexpr char kLimits[] = "Time limits";
constexpr char kReach[] = "How hosts are reached";
constexpr char kOutput[] = "What is written";
constexpr char kLook[] = "Look, and start nothing";

}  // namespace

const std::vector<OptionRow>& OptionTable() {
  static const std::vector<OptionRow> table = {
      {"-np,--num-proc", Kind::kValue, "N", kWhere,
       "number of ranks; may be left out where hosts are given: all slots", "",
       SetNumber<&Options::ranks, 1, kMaxRanks>, "", "-n"},
      {"-H,--hosts", Kind::kCommaList, "HOST:SLOTS,...", kWhere,
       "hosts and how many ranks each takes", "", SetHosts},
      {"--hostfile,--machinefile", Kind::kValue, "FILE", kWhere,
       "hosts from a file, one a line: HOST slots=N max_slots=N", "", SetText<&Options::hostfile>},
      {"--slots-per-host", Kind::kValue, "N", kWhere,
       "ranks that a host takes which is listed without a number", "1",
       SetNumber<&Options::slots_per_host, 1, kMaxRanks>},
      {"--ps", Kind::kValue, "N", kWhere,
       "the first N ranks are parameter servers; the job goes on when another rank is lost", "",
       SetNumber<&Options::servers, 1, kMaxRanks>},
      {"--restarts", Kind::kValue, "N", kWhere,
       "start lost ranks again, up to N times, while the others wait for them", "0",
       SetNumber<&Options::restarts, 0, 1'000'000>},
      {"--min-np,--min-num-proc", Kind::kValue, "N", kWhere,
       "with --restarts: go on with at least N ranks if a host is lost; default: all", "",
       SetNumber<&Options::min_ranks, 1, kMaxRanks>},
      {"--max-np,--max-num-proc", Kind::kValue, "N", kWhere,
       "with --host-discovery-script: grow to at most N ranks; default: -np", "",
       SetNumber<&Options::max_ranks, 1, kMaxRanks>},
      {"--host-discovery-script", Kind::kValue, "PROGRAM", kWhere,
       "with --restarts: prints the hosts, HOST:SLOTS or HOST a line; asked once a second", "",
       SetText<&Options::discovery>},
      {"--oversubscribe", Kind::kFlag, "", kWhere, "more ranks than slots, up to max_slots",
       "false", SetFlag<&Options::oversubscribe>},
      {"--config", Kind::kValue, "FILE", kWhere, "options from a YAML file; the command line wins",
       "", nullptr, "", "--config-file"},
      {"--launcher", Kind::kValue, EngineNames(), kWhere, EngineHelp(), DefaultEngine(),
       SetLauncher},

      {"--bind", Kind::kValue, "auto|none|core|socket|numa", kRank,
       "what a rank is pinned to; --verbose reports it", "auto", SetBind},
      {"--threads", Kind::kValue, "N", kRank,
       "compute threads of a rank (OMP_NUM_THREADS); default: its CPUs", "",
       SetNumber<&Options::threads, 1, 1'000'000>},
      {"-x,--env", Kind::kRepeated, "NAME", kRank,
       "forward this environment variable to other hosts in any case", "", AddExported},
      {"--env-allow", Kind::kRepeated, "PATTERN", kRank,
       "forward variables like this although they look like secrets", "",
       AddPattern<&Options::env_allow>},
      {"--env-deny", Kind::kRepeated, "PATTERN", kRank,
       "do not forward variables like this; wins over --env-allow", "",
       AddPattern<&Options::env_deny>},
      {"--stdin", Kind::kValue, "none|0", kRank, "which rank reads dtrun's own stdin", "none",
       SetStdin},

      {"--bucket-mb,--fusion-threshold-mb", Kind::kValue, "auto|MIB", kLibrary,
       "reduce a gradient bucket once it holds this much", "auto", SetMebibytes, "bucket_bytes"},
      {"--autotune", Kind::kFlag, "", kLibrary,
       "look for the fastest bucket size and route in the first steps, then keep to it", "false",
       SetSwitch, "autotune"},
      {"--autotune-log,--autotune-log-file", Kind::kValue, "FILE", kLibrary,
       "and write each trial to this file (CSV)", "", SetKnob, "autotune_log"},
      {"--autotune-cache", Kind::kValue, "FILE", kLibrary,
       "and keep results in this file, for jobs like this one", "", SetKnob, "autotune_cache"},
      {"--autotune-wire", Kind::kFlag, "", kLibrary, "and try wire types, which round", "false",
       SetSwitch, "autotune_wire"},
      {"--backend", Kind::kValue, "auto|shm|hierarchical|tcp|ucx|mpi", kLibrary,
       "what moves the data", "auto", SetKnob, "backend"},
      {"--device-backend", Kind::kValue, "auto|cuda_ipc|nccl|hierarchical|host_staged", kLibrary,
       "what moves the data of GPUs", "auto", SetKnob, "device_backend"},
      {"--gpu-memory", Kind::kValue, "BYTES", kLibrary, "what a rank may take of its GPU's", "all",
       SetKnob, "gpu_memory_bytes"},
      {"--transport", Kind::kValue, "auto|tcp|ucx|mpi", kLibrary, "what carries data between hosts",
       "auto", SetKnob, "transport"},
      {"--peer-timeout", Kind::kValue, "SECONDS", kLibrary,
       "a rank whose host is silent for this long is lost (tcp, ucx)", "30", SetKnob,
       "peer_timeout_s"},
      {"--tcp-ports", Kind::kValue, "FIRST-LAST", kLibrary,
       "ports at which ranks listen (tcp), and MASTER_PORT", "any", SetKnob, "tcp_ports"},
      {"--wire-dtype", Kind::kValue, "none|f16|bf16", kLibrary,
       "as what f32 sums cross from host to host", "none", SetKnob, "wire_dtype"},
      {"--reduce-isa", Kind::kValue, "auto|baseline|avx2|avx512", kLibrary,
       "instruction set that sums on CPUs are computed with", "auto", SetKnob, "reduce_isa"},
      {"--engine-thread", Kind::kValue, "auto|on|off", kLibrary,
       "a thread that drives progress beside the program's own", "auto", SetKnob, "engine_thread"},
      {"--stall-warning", Kind::kValue, "SECONDS", kLibrary,
       "report an operation that does not advance", "30", SetKnob, "stall_warning_s",
       "--stall-check-warning-time-seconds"},
      {"--stall-timeout", Kind::kValue, "SECONDS", kLibrary,
       "fail an operation that does not advance", "600", SetKnob, "timeout_s",
       "--stall-check-shutdown-time-seconds"},
      {"--on-stall", Kind::kValue, "error|abort", kLibrary,
       "whether that is the operation's error or ends the job", "error", SetKnob, "on_stall"},
      {"--log-level", Kind::kValue, "error|warning|info", kLibrary, "how much the library says",
       "warning", SetKnob, "log_level"},

      {"--inject", Kind::kValue, "FAULTS", kLimits,
       "make faults on purpose, to see what the job does: 'kill rank 1 at step 7; drop host h2 at "
       "20s'",
       "", SetText<&Options::inject>},
      {"--timeout", Kind::kValue, "SECONDS", kLimits, "end the job after this time, with code 124",
       "", SetNumber<&Options::timeout_s, 1, kMaxSeconds>},
      {"--start-timeout", Kind::kValue, "SECONDS", kLimits,
       "end a job whose ranks have not started by then, with code 69", "60",
       SetNumber<&Options::start_timeout_s, 1, kMaxSeconds>},
      {"--host-wait", Kind::kValue, "SECONDS", kLimits,
       "try so long to reach a host whose name or sshd is not there yet; default: 0, or 300 in a "
       "launcher of Kubernetes' MPI operator",
       "", SetNumber<&Options::host_wait_s, 0, kMaxSeconds>},
      {"--host-timeout", Kind::kValue, "SECONDS", kLimits,
       "end the job when a host was out of reach for this long", "30",
       SetNumber<&Options::host_timeout_s, 4, 100'000>},
      {"--elastic-timeout", Kind::kValue, "SECONDS", kLimits,
       "end a job that has waited so long for hosts (--min-np)", "600",
       SetNumber<&Options::elastic_timeout_s, 1, kMaxSeconds>},
      {"--orphan-grace", Kind::kValue, "SECONDS", kLimits,
       "how long the job goes on if dtrun is killed or its terminal closes (--attach); 0: not at "
       "all",
       "0", SetNumber<&Options::orphan_grace_s, 0, kMaxSeconds>},
      {"--grace", Kind::kValue, "SECONDS", kLimits,
       "how long ranks that take notices may go on when dtrun is told to end; 0: not at all", "10",
       SetNumber<&Options::grace_s, 0, 1'000'000>},

      {"--network-interfaces", Kind::kCommaList, "NAME|CIDR,...", kReach,
       "networks to use between hosts: eth0 or 10.1.0.0/16", "", SetNetworks},
      {"--fanout", Kind::kValue, "HOSTS", kReach,
       "with more hosts, each host reaches so many others through ssh; 0: dtrun reaches all", "32",
       SetNumber<&Options::fanout, 0, 10'000>},
      {"--ssh-port", Kind::kValue, "PORT", kReach, "port of sshd on the hosts", "",
       SetNumber<&Options::ssh_port, 1, 65535>},
      {"--ssh-identity", Kind::kValue, "FILE", kReach, "private key for ssh", "", SetSshIdentity,
       "", "--ssh-identity-file"},
      {"--mpi-args", Kind::kValue, "\"WORDS\"", kReach,
       "more options for mpirun, divided as a shell does it; they win", "", SetMpiArgs},

      {"--tag", Kind::kValue, "rank|host|none", kOutput,
       "what stands in front of each line of the ranks", "rank", SetTag},
      {"--timestamps", Kind::kFlag, "", kOutput, "and when the line began", "false", SetTimestamps,
       "", "--prefix-output-with-timestamp"},
      {"--ranks", Kind::kCommaList, "LIST", kOutput, "show the output of these ranks alone: 0,3-5",
       "", SetText<&Options::shown_ranks>},
      {"--output-dir", Kind::kValue, "DIR", kOutput,
       "also write what each rank writes to DIR/rank.N/stdout and stderr", "", SetOutputFolder, "",
       "--output-filename"},
      {"--flight-record", Kind::kValue, "FILE", kOutput,
       "write the last operations of every rank to this file (JSON)", "",
       SetText<&Options::flight_record>},
      {"--timeline", Kind::kValue, "FILE", kOutput,
       "write what every rank does, on one clock, to this file (Chrome trace JSON)", "",
       SetText<&Options::timeline>, "", "--timeline-filename"},
      {"--progress", Kind::kFlag, "", kOutput,
       "show how far the ranks are, and which one is the slowest", "false",
       SetFlag<&Options::progress>},
      {"--metrics-file", Kind::kValue, "FILE", kOutput,
       "keep what the ranks do in this file (OpenMetrics), up to date every 2 s", "",
       SetText<&Options::metrics_file>},
      {"--report-json", Kind::kValue, "FILE", kOutput,
       "write how the job ended, and whose fault it was, to this file", "",
       SetText<&Options::report_json>},
      {"-v,--verbose", Kind::kFlag, "", kOutput,
       "say the launcher's command, what it says and the CPUs of each rank", "false",
       SetFlag<&Options::verbose>},

      {"--dry-run", Kind::kAction, "", kLook, "the launcher's command and where the ranks go", "",
       SetAction<Action::kDryRun>},
      {"--json", Kind::kValue, "FILE|-", kLook, "with --dry-run: write that as JSON to a file", "",
       SetText<&Options::json>},
      {"--print-config", Kind::kAction, "", kLook, "every option's value and where it comes from",
       "", SetAction<Action::kPrintConfig>},
      {"--print-env", Kind::kAction, "", kLook,
       "the environment of the ranks; secrets are not shown", "", SetAction<Action::kPrintEnv>},
      {"--attach", Kind::kAction, "JOB", kLook,
       "take the place of the lost dtrun of this job (--orphan-grace)", "", SetAttach},
      {"--check-build", Kind::kAction, "", kLook, "what this installation of dtrun consists of", "",
       SetAction<Action::kCheckBuild>},
      {"--completion", Kind::kAction, "", kLook, "a completion script for bash", "",
       SetAction<Action::kCompletion>},
      {"-V,--version", Kind::kAction, "", kLook, "dtrun's version", "",
       SetAction<Action::kVersion>},
      {"--help-all", Kind::kAction, "", kLook, "all options", "", SetAction<Action::kHelpAll>},
      {"-h,--help", Kind::kAction, "", kLook, "the most common options", "",
       SetAction<Action::kHelp>},
  };
  return table;
}

std::vector<std::string> Spellings(const OptionRow& row) {
  std::vector<std::string> spellings = base::Split(row.spellings, ',');
  for (const std::string& alias : base::Split(row.aliases, ','))
    if (!alias.empty()) spellings.push_back(alias);
  for (std::string& spelling : spellings)
    if (spelling.size() > 2 && spelling[1] != '-') spelling.insert(0, 1, '-');
  return spellings;
}

std::string TypedName(const OptionRow& row) {
  const std::vector<std::string> typed = base::Split(row.spellings, ',');
  return typed[0].size() > 2 || typed.size() == 1 ? typed[0] : typed[1];
}

std::string KeyOf(const OptionRow& row) {
  const std::string name = TypedName(row);
  return name.substr(name.find_first_not_of('-'));
}

bool TakesValue(const OptionRow& row) { return row.value[0] != '\0'; }

bool IsCommon(const OptionRow& row) {
  static const std::set<std::string> common = {
      "np",      "hosts",       "config",   "launcher",    "bind",     "threads", "env",
      "tag",     "output-dir",  "timeline", "report-json", "progress", "timeout", "verbose",
      "dry-run", "check-build", "version",  "help-all",    "help"};
  return common.contains(KeyOf(row));
}

std::string ReplacementFor(const std::string& spelling) {
  constexpr char kByItself[] = "dtrun chooses the way between hosts by itself (--backend)";
  constexpr char kNoCycle[] = "dtrun has no cycle: it reduces a bucket when the bucket is full";
  constexpr char kHosts[] = "say -np N, or -H HOST:SLOTS,... for several hosts";
  static const std::map<std::string, std::string> replacements = {
      {"--gloo", "--launcher local starts the ranks of one host without MPI"},
      {"--mpi", "mpirun starts the ranks unless --launcher says otherwise"},
      {"--nproc-per-node", kHosts},
      {"--nproc_per_node", kHosts},
      {"--nnodes", kHosts},
      {"--node-rank", "dtrun reaches the other hosts itself: -H HOST:SLOTS,..."},
      {"--master-addr", "dtrun sets MASTER_ADDR; export it to choose another one"},
      {"--master-port", "dtrun sets MASTER_PORT; export it to choose another one"},
      {"--cycle-time-ms", kNoCycle},
      {"--timeline-mark-cycles", kNoCycle},
      {"--cache-capacity", "dtrun agrees on tensors once and needs no cache"},
      {"--disable-cache", "dtrun agrees on tensors once and needs no cache"},
      {"--no-stall-check", "give --stall-warning a large number of seconds"},
      {"--hierarchical-allreduce", kByItself},
      {"--no-hierarchical-allreduce", kByItself},
      {"--hierarchical-allgather", kByItself},
      {"--binding-args", "--bind pins the ranks"},
      {"--reset-limit", "--restarts N limits how often lost ranks are started again"},
      {"--slots", "--slots-per-host N is for hosts that are named without a number"},
      {"--blacklist-cooldown-range",
       "dtrun tries a lost host again after longer and longer pauses"},
  };
  const auto found = replacements.find(spelling);
  return found == replacements.end() ? "" : found->second;
}

}  // namespace dtrun::launcher
