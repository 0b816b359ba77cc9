#include "runtime/job/join_by_hand.h"

#include <algorithm>
#include <fstream>
#include <functional>
#include <iterator>
#include <utility>
#include <vector>

#include "base/json.h"
#include "base/text.h"
#include "base/version.h"
#include "dtrun/error.h"

namespace dtrun::runtime {
namespace {

using base::JsonText;
using base::ParseJsonOrDiscard;
using base::Text;
using Way = JoinPlan::Way;

[[noreturn]] void Contradict(const std::string& what) {
  throw Error(
      ErrorCode::kInvalidArgument,
      Text(
          "the environment contradicts itself: ", what, " (set DTRUN_ALONE=1 for a world of one)"));
}

[[noreturn]] void Miss(const char* missing, const std::string& because) {
  throw Error(
      ErrorCode::kInvalidArgument, Text(
                                       "environment variable ", missing, " is missing, but ",
                                       because, " (set DTRUN_ALONE=1 for a world of one)"));
}

// Formats a host for -H: an IPv6 address gets brackets.
std::string InHostList(const std::string& host) {
  return host.find(':') == std::string::npos ? host : "[" + host + "]";
}

std::string DtrunLine(
    const std::string& hosts, const std::vector<std::string>& options, const Machine& machine) {
  std::vector<std::string> words = {"dtrun"};
  words.insert(words.end(), options.begin(), options.end());
  words.insert(words.end(), {"-H", hosts});
  for (const std::string& word : machine.command()) words.push_back(word);
  return ShellLine(words);
}

// ---- TF_CONFIG ----------------------------------------------------------------------------------

// The host list for -H, in rank order as dtrun numbers ranks: "h1:2,h2:1".
std::string HostsOf(const TfCluster& cluster) {
  std::vector<std::pair<std::string, int>> hosts;
  for (const std::string& address : cluster.addresses) {
    const std::string host = HostOfAddress(address);
    const auto known = std::find_if(
        hosts.begin(), hosts.end(), [&](const auto& other) { return other.first == host; });
    if (known == hosts.end()) {
      hosts.emplace_back(host, 1);
    } else {
      ++known->second;
    }
  }
  std::vector<std::string> items;
  for (const auto& [host, slots] : hosts) items.push_back(Text(InHostList(host), ':', slots));
  return base::Join(items, ",");
}

bool AllAreHere(const TfCluster& cluster, const Machine& machine) {
  return std::all_of(
      cluster.addresses.begin(), cluster.addresses.end(),
      [&](const std::string& address) { return machine.is_own(HostOfAddress(address)); });
}

// Throws unless this process is a task, and all tasks are on this host or `may_be_far`.
void CheckTasks(const TfCluster& cluster, const Machine& machine, bool may_be_far) {
  const size_t size = cluster.addresses.size();
  const std::vector<std::string> options =
      cluster.servers == 0 ? std::vector<std::string>{}
                           : std::vector<std::string>{"--ps", Text(cluster.servers)};
  if (cluster.rank < 0)
    throw Error(
        ErrorCode::kInvalidArgument,
        Text(
            "environment variable TF_CONFIG has ", size,
            " tasks, but no task.type and task.index for this process",
            InsteadType(DtrunLine(HostsOf(cluster), options, machine))));
  if (may_be_far) return;
  for (const std::string& address : cluster.addresses)
    if (!machine.is_own(HostOfAddress(address)))
      throw Error(
          ErrorCode::kUnavailable,
          Text(
              "TF_CONFIG names ", HostOfAddress(address),
              ", which is not this host, and no launcher has started the ranks",
              cluster.servers == 0 ? Text(": ", kNeedsSecret) : "",
              InsteadType(DtrunLine(HostsOf(cluster), options, machine))));
}

int PortOfAddress(const std::string& address) {
  const auto port = base::ParseInteger(address.substr(address.rfind(':') + 1));
  return port && *port >= 1 && *port <= 65535 ? static_cast<int>(*port) : 0;
}

// The ranks meet at the address of the first task.
JoinPlan PlanAcrossHosts(const TfCluster& cluster) {
  const std::string& first = cluster.addresses[0];
  const int port = PortOfAddress(first);
  if (port == 0)
    throw Error(
        ErrorCode::kInvalidArgument,
        Text(
            "environment variable TF_CONFIG: the first task is ", first,
            "; expected a port from 1 to 65535, where the ranks meet"));
  return {
      .way = Way::kStore,
      .description = "by TF_CONFIG",
      .meeting = "TF_CONFIG " + base::Join(cluster.addresses, ","),
      .rank = cluster.rank,
      .size = static_cast<int>(cluster.addresses.size()),
      .place = {HostOfAddress(first), port},
      .host = HostOfAddress(cluster.addresses[static_cast<size_t>(cluster.rank)])};
}

std::string MeetingOf(const TfCluster& cluster) {
  return "TF_CONFIG " + base::Join(cluster.addresses, ",");
}

std::optional<JoinPlan> PlanByTfConfig(
    const TfCluster& cluster, const base::GetEnv& get, const Machine& machine) {
  const int size = static_cast<int>(cluster.addresses.size());
  if (size == 0) return std::nullopt;
  if (size == 1) return JoinPlan{};
  const bool trusts = cluster.servers == 0 && !ReadTrust(get).empty();
  CheckTasks(cluster, machine, trusts);
  if (!AllAreHere(cluster, machine)) return PlanAcrossHosts(cluster);
  return JoinPlan{
      .way = Way::kLocal,
      .description = "by TF_CONFIG, on this host",
      .meeting = MeetingOf(cluster),
      .rank = cluster.rank,
      .size = size};
}

// ---- RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT -------------------------------------------------

// The host list for -H, as far as the variables tell it: "h1:2,h2:2". The first host is the
// master's. If this host is another one, it comes second.
std::string HostsOf(
    int size, std::optional<int> local_size, const std::string& master, const Machine& machine) {
  std::vector<std::string> hosts = {InHostList(master)};
  if (!machine.is_own(master)) hosts.push_back(machine.host_name);
  if (local_size) {
    const int count = (size + *local_size - 1) / *local_size;
    for (int i = static_cast<int>(hosts.size()); i < count; ++i)
      hosts.push_back(Text("HOST", i + 1));
  } else if (hosts.size() == 1) {
    hosts.push_back("HOST2");
  }
  std::vector<std::string> items;
  int left = size;
  for (const std::string& host : hosts) {
    const bool known = local_size || size == static_cast<int>(hosts.size());
    const int slots = std::min(left, local_size.value_or(1));
    items.push_back(known ? Text(host, ':', slots) : host + ":SLOTS");
    left -= slots;
  }
  return base::Join(items, ",");
}

bool IsLoopback(const std::string& host) {
  return host == "localhost" || host == "::1" || host.starts_with("127.");
}

// torchrun itself listens at MASTER_PORT, so its ranks meet at the next port.
JoinPlan PlanAcrossHosts(
    const base::GetEnv& get, int rank, int size, const std::string& master, int port) {
  const bool taken = ValueOf(get, "TORCHELASTIC_USE_AGENT_STORE").value_or("") == "True";
  const int meets_at =
      NumberOf(get, "DTRUN_MASTER_PORT", 1, 65535).value_or(taken ? port + 1 : port);
  return {
      .way = Way::kStore,
      .description = "by MASTER_ADDR and MASTER_PORT",
      .meeting = Text(
          "address ", master, ':', port, ' ', ValueOf(get, "TORCHELASTIC_RUN_ID").value_or(""), ' ',
          ValueOf(get, "TORCHELASTIC_RESTART_COUNT").value_or("")),
      .rank = rank,
      .size = size,
      .place = {master, meets_at}};
}

JoinPlan PlanByRank(const base::GetEnv& get, int size, const Machine& machine) {
  const std::string several = Text("WORLD_SIZE is ", size);
  const std::optional<int> rank = NumberOf(get, "RANK", 0);
  if (!rank) Miss("RANK", several);
  if (*rank >= size) Contradict(Text("RANK is ", *rank, ", but WORLD_SIZE is ", size));
  const std::optional<int> local_size = NumberOf(get, "LOCAL_WORLD_SIZE", 1);
  const std::optional<int> local_rank = NumberOf(get, "LOCAL_RANK", 0);
  if (local_size && *local_size > size)
    Contradict(Text("LOCAL_WORLD_SIZE is ", *local_size, ", but WORLD_SIZE is ", size));
  if (local_rank && *local_rank >= local_size.value_or(size))
    Contradict(Text(
        "LOCAL_RANK is ", *local_rank, ", but ", local_size ? "LOCAL_WORLD_SIZE" : "WORLD_SIZE",
        " is ", local_size.value_or(size)));
  const std::optional<std::string> master = ValueOf(get, "MASTER_ADDR");
  if (!master) Miss("MASTER_ADDR", several);
  const std::optional<int> port = NumberOf(get, "MASTER_PORT", 1, 65535);
  if (!port) Miss("MASTER_PORT", several);
  const bool far = !machine.is_own(*master);
  const bool several_hosts = far || (local_size && *local_size < size);
  // If the ranks of this host are not counted, others may be elsewhere.
  const bool may_be_far = several_hosts || (!local_size && !IsLoopback(*master));
  if (may_be_far && !ReadTrust(get).empty())
    return PlanAcrossHosts(get, *rank, size, *master, *port);
  if (several_hosts)
    throw Error(
        ErrorCode::kUnavailable,
        Text(
            far ? Text("MASTER_ADDR is ", *master, ", which is not this host")
                : Text("LOCAL_WORLD_SIZE is ", *local_size, " of ", size),
            ": ", kNeedsSecret,
            InsteadType(DtrunLine(
                HostsOf(size, local_size, *master, machine), {"-np", Text(size)}, machine))));
  return {
      .way = Way::kLocal,
      .description = "by MASTER_ADDR and MASTER_PORT, on this host",
      .meeting = Text("address ", *master, ':', *port),
      .rank = *rank,
      .size = size};
}

// Throws if TF_CONFIG has tasks that contradict WORLD_SIZE or RANK.
void CheckAgainst(const TfCluster& cluster, int size, const base::GetEnv& get) {
  if (cluster.addresses.empty()) return;
  const int tasks = static_cast<int>(cluster.addresses.size());
  if (tasks != size)
    Contradict(Text("WORLD_SIZE is ", size, ", but TF_CONFIG has ", tasks, " tasks"));
  const std::optional<int> rank = NumberOf(get, "RANK", 0);
  if (rank && cluster.rank >= 0 && *rank != cluster.rank)
    Contradict(Text("RANK is ", *rank, ", but by TF_CONFIG it is ", cluster.rank));
}

}  // namespace

Trust ReadTrust(const base::GetEnv& get) {
  constexpr size_t kLeast = 16;
  Trust trust;
  trust.secret = ValueOf(get, "DTRUN_JOB_SECRET").value_or("");
  std::string source = "environment variable DTRUN_JOB_SECRET";
  bool given = !trust.secret.empty();
  if (const auto path = ValueOf(get, "DTRUN_JOB_SECRET_FILE"); path && !given) {
    source = Text("the file of DTRUN_JOB_SECRET_FILE, ", *path, ",");
    given = true;
    std::ifstream file(*path, std::ios::binary);
    trust.secret.assign(std::istreambuf_iterator<char>(file), {});
    if (!file) throw Error(ErrorCode::kSystem, Text(source, " cannot be read"));
  }
  if (given && trust.secret.size() < kLeast)
    throw Error(
        ErrorCode::kInvalidArgument,
        Text(source, " has ", trust.secret.size(), " bytes; expected at least ", kLeast));
  const std::string networks = ValueOf(get, "DTRUN_TRUSTED_NETWORK").value_or("");
  trust.networks = base::ParseAddressBlocks(networks);
  if (!networks.empty() && trust.networks.size() != base::Split(networks, ',').size())
    throw Error(
        ErrorCode::kInvalidArgument,
        Text(
            "environment variable DTRUN_TRUSTED_NETWORK is '", networks,
            "'; expected IPv4 networks, such as 10.1.0.0/16"));
  return trust;
}

std::optional<std::string> ValueOf(const base::GetEnv& get, const std::string& name) {
  const std::optional<std::string> value = get(name);
  return value && value->empty() ? std::nullopt : value;
}

std::optional<int> NumberOf(const base::GetEnv& get, const std::string& name, int least, int most) {
  const std::optional<std::string> value = ValueOf(get, name);
  if (!value) return std::nullopt;
  const std::optional<int64_t> number = base::ParseInteger(*value);
  if (number && *number >= least && *number <= most) return static_cast<int>(*number);
  throw Error(
      ErrorCode::kInvalidArgument, Text(
                                       "environment variable ", name, " is '", *value,
                                       "'; expected a number from ", least, " to ", most));
}

std::string InsteadType(const std::string& line) {
  return Text("; type instead: ", line, "   (set DTRUN_ALONE=1 for a world of one)");
}

std::optional<JoinPlan> PlanByNumber(
    const base::GetEnv& get, int rank, int size, const std::string& numbered_by) {
  const std::optional<std::string> master = ValueOf(get, "MASTER_ADDR");
  const std::optional<int> port = NumberOf(get, "MASTER_PORT", 1, 65535);
  if (!master || !port || (!IsLoopback(*master) && ReadTrust(get).empty())) return std::nullopt;
  if (rank >= size) Contradict(Text(numbered_by, " has started rank ", rank, " of ", size));
  JoinPlan plan = PlanAcrossHosts(get, rank, size, *master, *port);
  plan.description += Text(", as rank of ", numbered_by);
  return plan;
}

std::optional<base::LaunchEnv> LaunchByTfConfig(const base::GetEnv& get, const Machine& machine) {
  const std::optional<std::string> config = ValueOf(get, "TF_CONFIG");
  const TfCluster cluster = config ? ReadTfCluster(*config) : TfCluster{};
  if (cluster.servers == 0) return std::nullopt;
  CheckTasks(cluster, machine, false);
  const int size = static_cast<int>(cluster.addresses.size());
  if (cluster.servers + (cluster.evaluator ? 1 : 0) >= size)
    throw Error(
        ErrorCode::kInvalidArgument,
        "environment variable TF_CONFIG: the cluster has no chief and no worker");
  return base::LaunchEnv{
      .job = Text("tf-", std::hash<std::string>()(MeetingOf(cluster))),
      .version = base::kVersion,
      .hosts = {{machine.host_name, size}},
      .servers = cluster.servers,
      .evaluator = cluster.evaluator,
      .rank = cluster.rank};
}

std::optional<JoinPlan> PlanByHand(const base::GetEnv& get, const Machine& machine) {
  const std::optional<std::string> config = ValueOf(get, "TF_CONFIG");
  const TfCluster cluster = config ? ReadTfCluster(*config) : TfCluster{};
  const std::optional<int> size = NumberOf(get, "WORLD_SIZE", 1);
  if (!size) {
    if (cluster.addresses.empty() && ValueOf(get, "RANK"))
      Miss("WORLD_SIZE", Text("RANK is ", *ValueOf(get, "RANK")));
    return PlanByTfConfig(cluster, get, machine);
  }
  CheckAgainst(cluster, *size, get);
  if (*size > 1) return PlanByRank(get, *size, machine);
  if (NumberOf(get, "RANK", 0).value_or(0) > 0)
    Contradict(Text("RANK is ", *ValueOf(get, "RANK"), ", but WORLD_SIZE is 1"));
  return JoinPlan{};
}

namespace {

using base::Text;
using nlohmann::json;

[[noreturn]] void Refuse(const std::string& what) {
  throw Error(ErrorCode::kInvalidArgument, "environment variable TF_CONFIG: " + what);
}

std::string Excerpt(const std::string& text) {
  constexpr size_t kMost = 60;
  return "'" + text.substr(0, kMost) + (text.size() > kMost ? "...'" : "'");
}

// Names a list or an object by its type only. Dumping it recurses once per level, and the number of
// levels is unlimited.
std::string InWords(const json& value) {
  if (value.is_structured()) return Text("an ", value.type_name());
  return Excerpt(JsonText(value));
}

void AddTasks(const json& cluster, const std::string& job, TfCluster& read) {
  const auto tasks = cluster.find(job);
  if (tasks == cluster.end()) return;
  if (!tasks->is_array()) Refuse(Text("cluster.", job, " is not a list of \"host:port\""));
  for (const json& task : *tasks) {
    if (!task.is_string() || HostOfAddress(task.get<std::string>()).empty())
      Refuse(Text("cluster.", job, " holds ", InWords(task), ", expected \"host:port\""));
    read.addresses.push_back(task);
  }
}

int ReadIndex(const json& task, const std::string& type, size_t tasks) {
  if (tasks == 0)
    Refuse(Text("task.type is ", Excerpt(type), ", but cluster.", type, " has no task"));
  const auto index = task.find("index");
  // Some programs write the index as text.
  const auto number = index == task.end()          ? std::nullopt
                      : index->is_string()         ? base::ParseInteger(index->get<std::string>())
                      : index->is_number_integer() ? std::optional(index->get<int64_t>())
                                                   : std::nullopt;
  if (!number || *number < 0 || *number >= static_cast<int64_t>(tasks))
    Refuse(Text(
        "task.index is ", index == task.end() ? "missing" : InWords(*index),
        "; expected a number below ", tasks, ", the number of tasks in cluster.", type));
  return static_cast<int>(*number);
}

}  // namespace

std::string HostOfAddress(const std::string& address) {
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos || colon + 1 == address.size()) return "";
  std::string host = address.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']')
    host = host.substr(1, host.size() - 2);
  return host;
}

TfCluster ReadTfCluster(const std::string& text) {
  const json config = ParseJsonOrDiscard(text);
  if (!config.is_object()) Refuse(Text("found ", Excerpt(text), ", expected a JSON object"));
  const auto cluster = config.find("cluster");
  if (cluster == config.end()) return {};
  if (!cluster->is_object()) Refuse("cluster is not an object of lists of \"host:port\"");
  const auto task = config.find("task");
  const bool has_task = task != config.end() && task->is_object();
  const std::string type =
      has_task && task->contains("type") && task->at("type").is_string() ? task->at("type") : "";
  TfCluster read;
  for (const std::string job : {"ps", "chief", "master", "worker", "evaluator"}) {
    const size_t before = read.addresses.size();
    AddTasks(*cluster, job, read);
    if (job == "ps") read.servers = static_cast<int>(read.addresses.size());
    if (job == "evaluator") read.evaluator = read.addresses.size() > before;
    if (job == "evaluator" && read.addresses.size() > before + (read.servers > 0 ? 1 : 0))
      Refuse(
          "cluster.evaluator: expected one evaluator, in a cluster with parameter servers (ps); "
          "start another evaluator as a program of its own");
    if (type == job)
      read.rank = static_cast<int>(before) + ReadIndex(*task, type, read.addresses.size() - before);
  }
  if (has_task && read.rank < 0 && read.addresses.size() > 1)
    Refuse(
        Text("task.type is ", Excerpt(type), "; expected ps, chief, master, worker or evaluator"));
  return read;
}

void CheckTfJob(const base::GetEnv& get, int rank, const std::vector<int>& host_of_rank) {
  const std::string text = get("TF_CONFIG").value_or("");
  if (text.empty()) return;
  const TfCluster cluster = ReadTfCluster(text);
  const size_t tasks = cluster.addresses.size();
  if (tasks == 0) return;
  if (tasks != host_of_rank.size())
    Refuse(Text(
        "the cluster has ", tasks, tasks == 1 ? " task" : " tasks", "; expected ",
        host_of_rank.size(), ", as many as the job has ranks"));
  if (cluster.rank >= 0 && cluster.rank != rank)
    Refuse(Text(
        "found task ", cluster.rank, "; expected task ", rank, ", as this process is rank ", rank));
  for (size_t task = 1; task < tasks; ++task)
    for (size_t other = 0; other < task; ++other) {
      const std::string host = HostOfAddress(cluster.addresses[task]);
      if (host == HostOfAddress(cluster.addresses[other]) &&
          host_of_rank[task] != host_of_rank[other])
        Refuse(Text(
            "tasks ", other, " and ", task, " are both on ", host,
            "; the job has these ranks on two hosts"));
    }
}

}  // namespace dtrun::runtime
