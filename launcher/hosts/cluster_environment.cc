#include "launcher/hosts/cluster_environment.h"

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <iterator>
#include <map>
#include <optional>
#include <sstream>
#include <utility>

#include "base/json.h"
#include "base/text.h"
#include "launcher/hosts/hosts.h"
#include "launcher/support/launch_error.h"
#include "launcher/support/quoting.h"

namespace dtrun::launcher {
namespace {

using base::JsonText;
using base::ParseJsonOrDiscard;
using base::Text;
using Names = std::vector<std::string>;

constexpr char kNodes[] = "SLURM_JOB_NODELIST";
constexpr char kTasks[] = "SLURM_TASKS_PER_NODE";

// Reads text from left to right and names the column of an error.
class Reader {
 public:
  Reader(const char* variable, const std::string& text) : variable_(variable), text_(text) {}

  bool AtEnd() const { return at_ == text_.size(); }
  bool Takes(char c) {
    if (AtEnd() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  void Expect(char c) {
    if (!Takes(c)) Refuse(Text("'", c, "'"));
  }
  template <typename Predicate>
  std::string TakeWhile(Predicate predicate) {
    const size_t begin = at_;
    while (!AtEnd() && predicate(static_cast<unsigned char>(text_[at_]))) ++at_;
    return text_.substr(begin, at_ - begin);
  }
  std::string Digits() {
    const std::string digits = TakeWhile([](unsigned char c) { return std::isdigit(c) != 0; });
    if (digits.empty() || digits.size() > 9) Refuse("a number");
    return digits;
  }
  [[noreturn]] void Refuse(const std::string& expected) const {
    throw UsageError(
        Text(variable_, ' ', Excerpt(text_), ": expected ", expected, " at column ", at_ + 1));
  }

 private:
  const char* variable_;
  const std::string& text_;
  size_t at_ = 0;
};

int64_t NumberOf(const std::string& digits) { return base::ParseInteger(digits).value_or(0); }

// Reads "08-10" as 08, 09, 10.
void AppendRange(Reader& reader, Names& numbers) {
  const std::string first = reader.Digits();
  const std::string last = reader.Takes('-') ? reader.Digits() : first;
  if (NumberOf(last) < NumberOf(first)) reader.Refuse("a range that goes up");
  if (NumberOf(last) - NumberOf(first) + static_cast<int64_t>(numbers.size()) >= kMaxRanks)
    reader.Refuse(Text("at most ", kMaxRanks, " nodes"));
  for (int64_t number = NumberOf(first); number <= NumberOf(last); ++number) {
    const std::string digits = Text(number);
    const size_t zeros = first.size() > digits.size() ? first.size() - digits.size() : 0;
    numbers.push_back(std::string(zeros, '0') + digits);
  }
}

Names ReadBracket(Reader& reader) {
  Names numbers;
  do AppendRange(reader, numbers);
  while (reader.Takes(','));
  reader.Expect(']');
  return numbers;
}

Names Product(const Reader& reader, const Names& names, const Names& endings) {
  if (names.size() * endings.size() > kMaxRanks)
    reader.Refuse(Text("at most ", kMaxRanks, " nodes"));
  Names product;
  for (const std::string& name : names)
    for (const std::string& ending : endings) product.push_back(name + ending);
  return product;
}

// Reads text and brackets alternately: "r[1-2]n[1-4]-ib".
Names ReadItem(Reader& reader) {
  Names names = {reader.TakeWhile(
      [](unsigned char c) { return std::isalnum(c) || c == '.' || c == '_' || c == '-'; })};
  while (reader.Takes('[')) {
    names = Product(reader, names, ReadBracket(reader));
    const std::string text = reader.TakeWhile(
        [](unsigned char c) { return std::isalnum(c) || c == '.' || c == '_' || c == '-'; });
    for (std::string& name : names) name += text;
  }
  if (RefusalOfHost(names.front())) reader.Refuse("the name of a node");
  return names;
}

}  // namespace

std::vector<std::string> ExpandNodeList(const std::string& text) {
  Reader reader(kNodes, text);
  Names nodes;
  do {
    const Names more = ReadItem(reader);
    nodes.insert(nodes.end(), more.begin(), more.end());
    if (nodes.size() > kMaxRanks) reader.Refuse(Text("at most ", kMaxRanks, " nodes"));
  } while (reader.Takes(','));
  if (!reader.AtEnd()) reader.Refuse("',' or the end");
  return nodes;
}

std::vector<int> ExpandTaskCounts(const std::string& text) {
  Reader reader(kTasks, text);
  std::vector<int> counts;
  do {
    const std::optional<int> tasks = ParseSlots(reader.Digits());
    if (!tasks) reader.Refuse(Text("a number from 1 to ", kMaxRanks, " before it"));
    int64_t times = 1;
    if (reader.Takes('(')) {
      reader.Expect('x');
      times = NumberOf(reader.Digits());
      reader.Expect(')');
    }
    if (times > kMaxRanks - static_cast<int64_t>(counts.size()))
      reader.Refuse(Text("at most ", kMaxRanks, " nodes"));
    counts.insert(counts.end(), static_cast<size_t>(times), *tasks);
  } while (reader.Takes(','));
  if (!reader.AtEnd()) reader.Refuse("',', '(xN)' or the end");
  return counts;
}

std::vector<Host> SlurmHosts(const std::string& node_list, const std::string& tasks_per_node) {
  const Names nodes = ExpandNodeList(node_list);
  const std::vector<int> tasks =
      tasks_per_node.empty() ? std::vector<int>(nodes.size(), 0) : ExpandTaskCounts(tasks_per_node);
  if (tasks.size() != nodes.size())
    throw UsageError(Text(
        kTasks, ' ', Excerpt(tasks_per_node), " is for ", tasks.size(), " nodes, but ", kNodes, ' ',
        Excerpt(node_list), " has ", nodes.size()));
  std::vector<Host> hosts;
  int64_t slots = 0;
  for (size_t i = 0; i < nodes.size(); ++i) {
    hosts.push_back({nodes[i], tasks[i], 0, kNodes});
    slots += tasks[i];
  }
  if (slots > kMaxRanks)
    throw UsageError(Text(kTasks, " has ", slots, " tasks; expected at most ", kMaxRanks));
  return hosts;
}

namespace {

// Collects hosts that may come several times, in the order of their first appearance.
class SlotSums {
 public:
  explicit SlotSums(std::string origin) : origin_(std::move(origin)) {}

  // `line` is 0 if the source has no lines.
  void Add(const std::string& name, const std::string& slots, size_t line) {
    const std::string place = line > 0 ? Text(origin_, ", line ", line) : origin_;
    if (RefusalOfHost(name))
      throw UsageError(Text(place, ": found ", Excerpt(name), ", expected the name of a host"));
    const std::optional<int> more = ParseSlots(slots);
    if (!more)
      throw UsageError(Text(
          place, ": found ", Excerpt(slots), " after ", name,
          ", expected a number of slots from 1 to ", kMaxRanks));
    slots_ += *more;
    if (slots_ > kMaxRanks)
      throw UsageError(Text(place, ": found ", slots_, " slots, expected at most ", kMaxRanks));
    const auto [known, is_new] = places_.emplace(name, hosts_.size());
    if (is_new) hosts_.push_back({name, 0, 0, origin_});
    hosts_[known->second].slots += *more;
  }

  std::vector<Host> Take(const char* form) {
    if (hosts_.empty()) throw UsageError(Text(origin_, ": found no host, expected ", form));
    return std::move(hosts_);
  }

 private:
  std::string origin_;
  std::vector<Host> hosts_;
  std::map<std::string, size_t> places_;  // indexes of the hosts, by name
  int64_t slots_ = 0;
};

Names WordsOf(const std::string& line) {
  std::istringstream stream(line);
  return {std::istream_iterator<std::string>(stream), {}};
}

// `add` gets the words of each line that has some, the line and its number.
template <typename Add>
void ForEachLine(const std::string& text, const Add& add) {
  size_t number = 0;
  for (const std::string& line : base::Split(text, '\n')) {
    const Names words = WordsOf(line);
    ++number;
    if (!words.empty()) add(words, line, number);
  }
}

}  // namespace

std::vector<Host> SlotFileHosts(const std::string& origin, const std::string& text) {
  SlotSums hosts(origin);
  ForEachLine(text, [&](const Names& words, const std::string& line, size_t number) {
    hosts.Add(words.size() == 1 ? words[0] : line, "1", number);
  });
  return hosts.Take("one host a line");
}

std::vector<Host> LsfHosts(const std::string& text) {
  SlotSums hosts("LSB_MCPU_HOSTS");
  const Names words = WordsOf(text);
  for (size_t i = 0; i < words.size(); i += 2)
    hosts.Add(words[i], i + 1 < words.size() ? words[i + 1] : "", 0);
  return hosts.Take("hosts and their slots in turn");
}

std::vector<Host> GridEngineHosts(const std::string& text) {
  SlotSums hosts("PE_HOSTFILE");
  ForEachLine(text, [&](const Names& words, const std::string&, size_t number) {
    hosts.Add(words[0], words.size() > 1 ? words[1] : "", number);
  });
  return hosts.Take("lines such as: node1 4 all.q@node1 UNDEFINED");
}

namespace {

using nlohmann::json;

constexpr char kName[] = "TF_CONFIG";

// Lists and objects are not printed, because dump() recurses once per level and the input may have
// any depth.
std::string InWords(const json& value) {
  return value.is_structured() ? Text("an ", value.type_name()) : Excerpt(JsonText(value));
}

// "h1:2222" -> "h1"
std::string HostOfTask(const json& task, const std::string& job) {
  if (!task.is_string())
    throw UsageError(
        Text(kName, ": cluster.", job, " holds ", InWords(task), ", expected \"host:port\""));
  const std::string address = task.get<std::string>();
  const std::string name = address.substr(0, address.rfind(':'));
  if (RefusalOfHost(name))
    throw UsageError(
        Text(kName, ": cluster.", job, " holds ", Excerpt(address), ", expected host:port"));
  return name;
}

// Adds the hosts of the tasks of `job` to `tasks`.
void AddTasks(const json& cluster, const std::string& job, std::vector<std::string>& tasks) {
  const auto list = cluster.find(job);
  if (list == cluster.end()) return;
  if (!list->is_array())
    throw UsageError(Text(kName, ": cluster.", job, " is not a list of \"host:port\""));
  for (const json& task : *list) tasks.push_back(HostOfTask(task, job));
}

// One slot for each task. The ranks of a host come together, so they are in the order of the tasks
// only if equal hosts stand together.
std::vector<Host> HostsOf(const std::vector<std::string>& tasks) {
  std::vector<Host> hosts;
  for (const std::string& name : tasks) {
    const auto known = std::find_if(
        hosts.begin(), hosts.end(), [&](const Host& host) { return host.name == name; });
    if (known == hosts.end()) {
      hosts.push_back({name, 1, 0, kName});
    } else {
      ++known->slots;
    }
  }
  return hosts;
}

// The host of each rank that is no worker must be the host of its task.
void CheckOrder(const TfConfig& config, const std::vector<std::string>& tasks) {
  std::vector<std::string> ranks;
  for (const Host& host : config.hosts) ranks.insert(ranks.end(), host.slots, host.name);
  const size_t servers = static_cast<size_t>(config.servers);
  const bool equal = std::equal(tasks.begin(), tasks.begin() + config.servers, ranks.begin());
  if (!equal || (config.evaluator && ranks.back() != tasks.back()))
    throw UsageError(Text(
        kName, ": ", !equal ? "ps" : "evaluator",
        " shares a host with other tasks in a way that dtrun cannot number; expected the ", servers,
        servers == 1 ? " parameter server" : " parameter servers",
        " on the first hosts, and an evaluator on the last"));
}

}  // namespace

TfConfig ReadTfConfig(const std::string& text) {
  const json read = ParseJsonOrDiscard(text);
  if (!read.is_object())
    throw UsageError(Text(kName, ' ', Excerpt(text), ": expected a JSON object"));
  const auto cluster = read.find("cluster");
  if (cluster == read.end()) return {};
  if (!cluster->is_object())
    throw UsageError(Text(kName, ": cluster is not an object of lists of \"host:port\""));
  TfConfig config;
  std::vector<std::string> tasks;
  AddTasks(*cluster, "ps", tasks);
  config.servers = static_cast<int>(tasks.size());
  for (const char* job : {"chief", "master", "worker"}) AddTasks(*cluster, job, tasks);
  const size_t trained = tasks.size();
  AddTasks(*cluster, "evaluator", tasks);
  config.evaluator = tasks.size() > trained;
  if (tasks.size() > trained + (config.servers > 0 ? 1 : 0))
    throw UsageError(Text(
        kName,
        ": cluster.evaluator: expected one evaluator, in a cluster with parameter servers (ps); "
        "start another evaluator as a program of its own"));
  if (config.servers > 0 && trained == static_cast<size_t>(config.servers))
    throw UsageError(
        Text(kName, ": the cluster has parameter servers, but no chief and no worker"));
  config.hosts = HostsOf(tasks);
  CheckOrder(config, tasks);
  return config;
}

std::string WriteTfConfig(
    const std::vector<base::HostSlots>& hosts, const TfRoles& roles, const std::string& first_host,
    int rank, int first_port) {
  std::vector<std::string> tasks;
  for (const base::HostSlots& host : hosts)
    for (int slot = 0; slot < host.slots; ++slot)
      tasks.push_back(
          Text(host.name == hosts[0].name ? first_host : host.name, ':', first_port + slot));
  const int workers_end = static_cast<int>(tasks.size()) - (roles.evaluator ? 1 : 0);
  const auto part = [&](int from, int to) {
    return std::vector<std::string>(tasks.begin() + from, tasks.begin() + to);
  };
  json cluster = {{"worker", part(roles.servers, workers_end)}};
  if (roles.servers > 0) cluster["ps"] = part(0, roles.servers);
  if (roles.evaluator) cluster["evaluator"] = part(workers_end, workers_end + 1);
  json task = {{"type", "worker"}, {"index", rank - roles.servers}};
  if (rank < roles.servers) task = {{"type", "ps"}, {"index", rank}};
  if (rank >= workers_end) task = {{"type", "evaluator"}, {"index", 0}};
  return JsonText(json{{"cluster", cluster}, {"task", task}});
}

}  // namespace dtrun::launcher
