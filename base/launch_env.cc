#include "base/launch_env.h"

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <fstream>

#include "base/text.h"
#include "dtrun/error.h"

namespace dtrun::base {
namespace {

constexpr char kJob[] = "DTRUN_JOB";
constexpr char kVersionVariable[] = "DTRUN_LAUNCHER_VERSION";
constexpr char kHosts[] = "DTRUN_HOSTS";  // "h1:2,h2:2"; an IPv6 address stands in brackets
constexpr char kColumns[] = "DTRUN_TERMINAL_COLUMNS";
constexpr char kThreads[] = "DTRUN_THREADS";
constexpr char kBind[] = "DTRUN_BIND";
constexpr char kVerbose[] = "DTRUN_VERBOSE";
constexpr char kRank[] = "DTRUN_RANK";
constexpr char kShutdownNote[] = "DTRUN_SHUTDOWN_NOTE";
constexpr char kTimeline[] = "DTRUN_TIMELINE";
constexpr char kCorrupt[] = "DTRUN_CORRUPT";
constexpr char kFlightFolder[] = "DTRUN_FLIGHT_FOLDER";
constexpr char kServers[] = "DTRUN_PARAMETER_SERVERS";
constexpr char kEvaluator[] = "DTRUN_EVALUATOR";
constexpr char kSecretFile[] = "DTRUN_JOB_SECRET_FILE";
constexpr char kRestarts[] = "DTRUN_RESTARTS";
constexpr char kEpochFile[] = "DTRUN_EPOCH_FILE";
constexpr char kLaunchSize[] = "DTRUN_LAUNCH_SIZE";
constexpr char kMembers[] = "DTRUN_MEMBERS";
constexpr char kPaused[] = "DTRUN_PAUSED";
constexpr char kAgent[] = "DTRUN_AGENT";
constexpr char kStartsAgain[] = "DTRUN_STARTS_AGAIN";
constexpr char kEpoch[] = "DTRUN_EPOCH";
constexpr char kAgents[] = "DTRUN_AGENTS";
constexpr char kKeptState[] = "DTRUN_KEPT_STATE";

constexpr int kMostRanks = 1'000'000;  // also the limit of all other counts here

[[noreturn]] void Refuse(
    const std::string& variable, const std::string& value, const std::string& expected) {
  throw Error(
      ErrorCode::kInvalidArgument, Text(
                                       "environment variable ", variable, " is '", value,
                                       "'; expected ", expected, " (dtrun sets it)"));
}

int ReadCount(const GetEnv& get, const char* variable) {
  const std::string value = get(variable).value_or("0");
  const std::optional<int64_t> count = ParseInteger(value);
  if (!count || *count < 0 || *count > kMostRanks)
    Refuse(variable, value, Text("a number from 0 to ", kMostRanks));
  return static_cast<int>(*count);
}

std::vector<HostSlots> ReadHosts(const std::string& value) {
  std::vector<HostSlots> hosts;
  int64_t ranks = 0;
  for (const std::string& item : Split(value, ',')) {
    const size_t colon = item.rfind(':');
    const std::optional<int64_t> slots =
        colon == std::string::npos ? std::nullopt : ParseInteger(item.substr(colon + 1));
    if (colon == 0 || !slots || *slots < 1 || *slots > kMostRanks)
      Refuse(kHosts, value, "host:slots,host:slots,...");
    ranks += *slots;
    if (ranks > kMostRanks)
      Refuse(kHosts, Text(value.substr(0, 60), "..."), Text("at most ", kMostRanks, " ranks"));
    hosts.push_back({item.substr(0, colon), static_cast<int>(*slots)});
  }
  return hosts;
}

std::string HostsText(const LaunchEnv& launch) {
  std::vector<std::string> hosts;
  for (const HostSlots& host : launch.hosts) hosts.push_back(Text(host.name, ':', host.slots));
  return Join(hosts, ",");
}

std::string NumbersText(const std::vector<int>& numbers) {
  std::vector<std::string> words;
  for (const int number : numbers) words.push_back(Text(number));
  return Join(words, ",");
}

// A list with one number for each of the `count` things `what`, or an empty one.
std::vector<int> ReadNumbers(
    const GetEnv& get, const char* variable, size_t count, const char* what) {
  const std::string value = get(variable).value_or("");
  std::vector<int> numbers;
  if (value.empty()) return numbers;
  for (const std::string& item : Split(value, ',')) {
    const std::optional<int64_t> number = ParseInteger(item);
    if (!number || *number < 0 || *number > kMostRanks)
      Refuse(variable, value.substr(0, 60), "number,number,...");
    numbers.push_back(static_cast<int>(*number));
  }
  if (numbers.size() != count)
    Refuse(variable, value.substr(0, 60), Text("one number for each of the ", count, ' ', what));
  return numbers;
}

// "1:4:0,2:7:1": rank, step and bucket of each.
std::string CorruptionsText(const std::vector<Corruption>& corruptions) {
  std::vector<std::string> items;
  for (const Corruption& each : corruptions)
    items.push_back(Text(each.rank, ":", each.step, ":", each.bucket));
  return Join(items, ",");
}

std::vector<Corruption> ReadCorruptions(const std::string& text) {
  std::vector<Corruption> corruptions;
  for (const std::string& item : text.empty() ? std::vector<std::string>{} : Split(text, ',')) {
    std::vector<int64_t> numbers;
    for (const std::string& word : Split(item, ':'))
      if (const auto number = ParseInteger(word); number && *number >= 0)
        numbers.push_back(*number);
    if (numbers.size() != 3) Refuse(kCorrupt, text, "rank:step:bucket, separated by commas");
    corruptions.push_back(
        {static_cast<int>(numbers[0]), static_cast<uint64_t>(numbers[1]),
         static_cast<int>(numbers[2])});
  }
  return corruptions;
}

}  // namespace

Environment WriteMembers(const LaunchEnv& launch) {
  return {
      {kHosts, HostsText(launch)},
      {kMembers, NumbersText(launch.members)},
      {kPaused, launch.paused ? "1" : "0"}};
}

Environment WritePlace(int rank, int agent) { return {{kRank, Text(rank)}, {kAgent, Text(agent)}}; }

Environment WriteStart(int epoch, const std::vector<int>& agents) {
  return {{kEpoch, Text(epoch)}, {kAgents, NumbersText(agents)}};
}

Environment WriteLaunchEnv(const LaunchEnv& launch) {
  Environment environment = {
      {kJob, launch.job},
      {kVersionVariable, launch.version},
      {kHosts, HostsText(launch)},
      {kColumns, Text(launch.terminal_columns)},
  };
  if (launch.threads > 0) environment.emplace_back(kThreads, Text(launch.threads));
  if (!launch.bind.empty()) environment.emplace_back(kBind, launch.bind);
  if (launch.verbose) environment.emplace_back(kVerbose, "1");
  if (launch.timeline) environment.emplace_back(kTimeline, "1");
  if (!launch.corruptions.empty())
    environment.emplace_back(kCorrupt, CorruptionsText(launch.corruptions));
  if (launch.servers > 0) environment.emplace_back(kServers, Text(launch.servers));
  if (launch.evaluator) environment.emplace_back(kEvaluator, "1");
  if (!launch.secret_file.empty()) environment.emplace_back(kSecretFile, launch.secret_file);
  if (launch.restarts) environment.emplace_back(kRestarts, "1");
  if (launch.starts_again) environment.emplace_back(kStartsAgain, "1");
  if (launch.epoch > 0) environment.emplace_back(kEpoch, Text(launch.epoch));
  if (!launch.agents.empty()) environment.emplace_back(kAgents, NumbersText(launch.agents));
  if (!launch.kept_state.empty()) environment.emplace_back(kKeptState, launch.kept_state);
  if (launch.launch_size > 0) environment.emplace_back(kLaunchSize, Text(launch.launch_size));
  if (!launch.epoch_file.empty()) environment.emplace_back(kEpochFile, launch.epoch_file);
  if (launch.rank >= 0) environment.emplace_back(kRank, Text(launch.rank));
  if (!launch.members.empty()) environment.emplace_back(kMembers, NumbersText(launch.members));
  if (launch.paused) environment.emplace_back(kPaused, "1");
  if (launch.agent >= 0) environment.emplace_back(kAgent, Text(launch.agent));
  if (!launch.shutdown_note.empty()) environment.emplace_back(kShutdownNote, launch.shutdown_note);
  if (!launch.flight_folder.empty()) environment.emplace_back(kFlightFolder, launch.flight_folder);
  return environment;
}

const std::vector<std::string>& LaunchVariables() {
  static const std::vector<std::string> names = {
      kJob,          kVersionVariable, kHosts,     kColumns,    kThreads,
      kBind,         kVerbose,         kTimeline,  kRank,       kShutdownNote,
      kFlightFolder, kServers,         kEvaluator, kSecretFile, kRestarts,
      kEpochFile,    kMembers,         kPaused,    kAgent,      kLaunchSize,
      kStartsAgain,  kEpoch,           kAgents,    kKeptState,  kCorrupt,
  };
  return names;
}

std::optional<LaunchEnv> ReadLaunchEnv(const GetEnv& get) {
  const std::optional<std::string> job = get(kJob);
  if (!job) return std::nullopt;
  LaunchEnv launch;
  launch.job = *job;
  launch.version = get(kVersionVariable).value_or("");
  launch.hosts = ReadHosts(get(kHosts).value_or(""));
  launch.terminal_columns = ReadCount(get, kColumns);
  launch.threads = ReadCount(get, kThreads);
  launch.bind = get(kBind).value_or("");
  launch.verbose = get(kVerbose).value_or("") == "1";
  launch.timeline = get(kTimeline).value_or("") == "1";
  launch.corruptions = ReadCorruptions(get(kCorrupt).value_or(""));
  launch.servers = ReadCount(get, kServers);
  if (launch.servers > 0 && launch.servers >= RankCount(launch.hosts))
    Refuse(
        kServers, Text(launch.servers),
        Text("fewer parameter servers than the ", RankCount(launch.hosts), " ranks"));
  launch.evaluator = get(kEvaluator).value_or("") == "1";
  launch.secret_file = get(kSecretFile).value_or("");
  launch.restarts = get(kRestarts).value_or("") == "1";
  launch.starts_again = get(kStartsAgain).value_or("") == "1";
  launch.epoch = ReadCount(get, kEpoch);
  launch.agents = ReadNumbers(get, kAgents, launch.hosts.size(), "hosts");
  launch.kept_state = get(kKeptState).value_or("");
  launch.launch_size = ReadCount(get, kLaunchSize);
  launch.epoch_file = get(kEpochFile).value_or("");
  if (get(kRank)) launch.rank = ReadCount(get, kRank);
  launch.members =
      ReadNumbers(get, kMembers, static_cast<size_t>(RankCount(launch.hosts)), "ranks");
  launch.paused = get(kPaused).value_or("") == "1";
  if (get(kAgent)) launch.agent = ReadCount(get, kAgent);
  if (launch.members.empty() && launch.rank >= RankCount(launch.hosts))
    Refuse(kRank, Text(launch.rank), Text("a rank below ", RankCount(launch.hosts)));
  launch.shutdown_note = get(kShutdownNote).value_or("");
  launch.flight_folder = get(kFlightFolder).value_or("");
  return launch;
}

std::string EndedNote(const std::string& shutdown_note, int rank) {
  return Text(shutdown_note.substr(0, shutdown_note.rfind('/') + 1), "ended.", rank);
}

std::string InitNote(const std::string& shutdown_note) { return Text(shutdown_note, ".init"); }

std::string JoinedNote(const std::string& shutdown_note) { return Text(shutdown_note, ".joined"); }

int RankOf(const LaunchEnv& launch, int number) {
  if (launch.paused) return -1;
  if (launch.members.empty()) return number;
  const auto found = std::find(launch.members.begin(), launch.members.end(), number);
  return found == launch.members.end() ? -1 : static_cast<int>(found - launch.members.begin());
}

int HostOfRank(const std::vector<HostSlots>& hosts, int rank) {
  int host = 0;
  for (; rank >= hosts[static_cast<size_t>(host)].slots; ++host)
    rank -= hosts[static_cast<size_t>(host)].slots;
  return host;
}

int RankCount(const std::vector<HostSlots>& hosts) {
  int ranks = 0;
  for (const HostSlots& host : hosts) ranks += host.slots;
  return ranks;
}

std::optional<int> RankOfProcess(int process) {
  std::ifstream file(Text("/proc/", process, "/environ"), std::ios::binary);
  std::optional<int64_t> rank;
  for (std::string variable; std::getline(file, variable, '\0');) {
    const bool said = variable.starts_with(Text(kRank, '='));
    if (said || (!rank && variable.starts_with("RANK=")))
      rank = ParseInteger(variable.substr(variable.find('=') + 1));
    if (said) break;
  }
  if (!rank || *rank < 0 || *rank > INT_MAX) return std::nullopt;
  return static_cast<int>(*rank);
}

std::optional<std::string> ProcessEnv(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

}  // namespace dtrun::base
