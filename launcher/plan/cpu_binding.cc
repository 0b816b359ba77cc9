// BindCpus groups the CPUs of a host by core, socket or NUMA node. Each rank gets whole groups for
// itself. If there are more ranks than groups, neighbouring ranks share a group. PlanCpus divides
// single CPUs. The quota of the container limits the number of threads.

#include "launcher/plan/cpu_binding.h"

#include <sched.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <sstream>
#include <tuple>
#include <utility>

#include "base/text.h"
#include "launcher/support/host_system.h"
#include "launcher/support/launch_error.h"

namespace dtrun::launcher {
namespace {

using base::Text;
using Groups = std::vector<std::vector<int>>;

constexpr std::pair<const char*, Bind> kNames[] = {
    {"auto", Bind::kAuto},     {"none", Bind::kNone}, {"core", Bind::kCore},
    {"socket", Bind::kSocket}, {"numa", Bind::kNuma},
};

std::pair<int, int> KeyOf(const Cpu& cpu, Bind bind) {
  if (bind == Bind::kCore) return {cpu.socket, cpu.core};
  return {bind == Bind::kSocket ? cpu.socket : cpu.numa, 0};
}

// Groups the CPUs that a rank gets together, in the machine's order.
Groups GroupBy(const std::vector<Cpu>& cpus, Bind bind) {
  std::map<std::pair<int, int>, std::vector<int>> groups;
  for (const Cpu& cpu : cpus) groups[KeyOf(cpu, bind)].push_back(cpu.id);
  Groups list;
  for (const auto& [key, members] : groups) list.push_back(members);
  return list;
}

int ThreadsOf(int cpus, int ranks_on_them, std::optional<double> quota, int local_size) {
  const int share = std::max(1, cpus / ranks_on_them);
  if (!quota) return share;
  return std::clamp(static_cast<int>(*quota) / local_size, 1, share);
}

// Each rank has one or more groups for itself.
CpuPlan OwnGroups(
    const Groups& groups, std::optional<double> quota, int local_rank, int local_size) {
  const int count = static_cast<int>(groups.size());
  CpuPlan plan;
  for (int group = local_rank * count / local_size; group < (local_rank + 1) * count / local_size;
       ++group) {
    const std::vector<int>& cpus = groups[static_cast<size_t>(group)];
    plan.pinned.insert(plan.pinned.end(), cpus.begin(), cpus.end());
  }
  plan.threads = ThreadsOf(static_cast<int>(plan.pinned.size()), 1, quota, local_size);
  return plan;
}

// More ranks than groups: neighbouring ranks share a group.
CpuPlan SharedGroup(
    const Groups& groups, std::optional<double> quota, int local_rank, int local_size) {
  const int count = static_cast<int>(groups.size());
  const int group = local_rank * count / local_size;
  int sharers = 0;
  for (int rank = 0; rank < local_size; ++rank) sharers += rank * count / local_size == group;
  CpuPlan plan;
  plan.pinned = groups[static_cast<size_t>(group)];
  const int cpus = static_cast<int>(plan.pinned.size());
  plan.threads = ThreadsOf(cpus, sharers, quota, local_size);
  plan.oversubscribed = sharers > cpus;
  return plan;
}

}  // namespace

std::optional<Bind> ParseBind(const std::string& word) {
  for (const auto& [name, bind] : kNames)
    if (word == name) return bind;
  return std::nullopt;
}

std::string BindName(Bind bind) {
  for (const auto& [name, named] : kNames)
    if (bind == named) return name;
  return "";
}

CpuPlan BindCpus(
    const std::vector<Cpu>& cpus, std::optional<double> quota, Bind bind, int local_rank,
    int local_size) {
  std::vector<int> ids;
  for (const Cpu& cpu : cpus) ids.push_back(cpu.id);
  CpuPlan plan = PlanCpus(ids, quota, local_rank, local_size);
  if (bind == Bind::kAuto || cpus.empty()) return plan;
  if (bind == Bind::kNone) {
    plan.pinned.clear();
    return plan;
  }
  const Groups groups = GroupBy(cpus, bind);
  if (static_cast<size_t>(local_size) <= groups.size())
    return OwnGroups(groups, quota, local_rank, local_size);
  if (bind == Bind::kCore)
    throw UsageError(Text(
        "--bind core: the host has ", local_size, " ranks and ", groups.size(),
        groups.size() == 1 ? " usable core" : " usable cores", "; expected a core for each rank"));
  return SharedGroup(groups, quota, local_rank, local_size);
}

std::string CpusInWords(const std::vector<int>& cpus) {
  if (cpus.empty()) return "all CPUs";
  return (cpus.size() == 1 ? "CPU " : "CPUs ") + CpuList(cpus);
}

std::string CpuList(std::vector<int> cpus) {
  std::sort(cpus.begin(), cpus.end());
  std::string list;
  for (size_t first = 0; first < cpus.size();) {
    size_t last = first;
    while (last + 1 < cpus.size() && cpus[last + 1] == cpus[last] + 1) ++last;
    list += Text(first == 0 ? "" : ",", cpus[first]);
    if (last > first) list += Text('-', cpus[last]);
    first = last + 1;
  }
  return list;
}

namespace {

using base::Text;

std::optional<double> Tighter(std::optional<double> a, std::optional<double> b) {
  if (!a || !b) return a ? a : b;
  return std::min(*a, *b);
}

std::optional<double> Number(const std::string& text) {
  std::istringstream stream(text);
  double number = 0;
  if (!(stream >> number)) return std::nullopt;
  return number;
}

// Reads cpu.max: "max 100000" or "150000 100000", time per period.
std::optional<double> LimitOfGroupV2(const ReadFile& read, const std::string& group) {
  const auto text = read(group + "/cpu.max");
  if (!text) return std::nullopt;
  const std::vector<std::string> fields = base::Split(*text, ' ');
  const auto time = Number(fields.front());
  const auto period = Number(fields.back());
  if (!time || !period || *period <= 0) return std::nullopt;
  return *time / *period;
}

std::optional<double> LimitOfGroupV1(const ReadFile& read, const std::string& group) {
  const auto time = Number(read(group + "/cpu.cfs_quota_us").value_or(""));
  const auto period = Number(read(group + "/cpu.cfs_period_us").value_or(""));
  if (!time || !period || *time <= 0 || *period <= 0) return std::nullopt;  // -1: no limit
  return *time / *period;
}

// The limits of outer groups hold too. Inside a container, the path may be the path on the host.
// Then only the root of the mount exists, which is the container's own group.
template <typename LimitOfGroup>
std::optional<double> LimitUpwards(
    const ReadFile& read, const std::string& mount, std::string path, LimitOfGroup limit_of_group) {
  std::optional<double> limit;
  while (path.size() > 1) {
    limit = Tighter(limit, limit_of_group(read, mount + path));
    path.resize(path.rfind('/'));
  }
  return Tighter(limit, limit_of_group(read, mount));
}

constexpr char kCpuFolder[] = "/sys/devices/system/cpu/cpu";

int Topology(int cpu, const char* what) {
  const auto text = ReadFileOfSystem(Text(kCpuFolder, cpu, "/topology/", what));
  return text ? static_cast<int>(Number(*text).value_or(0)) : 0;
}

// The folder of a CPU has a link to the folder of its NUMA node: "node0".
int NumaNode(int cpu) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(Text(kCpuFolder, cpu), error)) {
    const std::string name = entry.path().filename();
    if (!name.starts_with("node")) continue;
    if (const auto node = base::ParseInteger(name.substr(4))) return static_cast<int>(*node);
  }
  return 0;
}

}  // namespace

CpuPlan PlanCpus(
    const std::vector<int>& allowed, std::optional<double> quota, int local_rank, int local_size) {
  const int cpus = static_cast<int>(allowed.size());
  const int usable = quota ? std::clamp(static_cast<int>(*quota), 1, std::max(cpus, 1)) : cpus;
  if (local_size > usable) return {.oversubscribed = true};
  if (local_size == 1) return {.threads = usable};
  const int share = cpus / local_size;
  const int left_over = cpus % local_size;
  const int first = local_rank * share + std::min(local_rank, left_over);
  const int count = share + (local_rank < left_over ? 1 : 0);
  CpuPlan plan;
  plan.pinned.assign(allowed.begin() + first, allowed.begin() + first + count);
  plan.threads = std::min(count, quota ? usable / local_size : count);
  return plan;
}

std::optional<double> CpuQuota(const ReadFile& read) {
  std::optional<double> limit;
  // Lines such as "0::/user.slice" (version 2) and "4:cpu,cpuacct:/docker/1f2e" (version 1).
  for (const std::string& line : base::Split(read("/proc/self/cgroup").value_or(""), '\n')) {
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string path = line.substr(second + 1);
    if (controllers.empty()) {
      limit = Tighter(limit, LimitUpwards(read, "/sys/fs/cgroup", path, LimitOfGroupV2));
      continue;
    }
    for (const std::string& controller : base::Split(controllers, ','))
      if (controller == "cpu")
        limit = Tighter(
            limit, LimitUpwards(read, "/sys/fs/cgroup/" + controllers, path, LimitOfGroupV1));
  }
  return limit;
}

std::vector<Cpu> AllowedCpus() {
  std::vector<Cpu> cpus;
  for (int size = 1024; size <= 1 << 20; size *= 4) {
    cpu_set_t* set = CPU_ALLOC(static_cast<size_t>(size));
    const size_t bytes = CPU_ALLOC_SIZE(static_cast<size_t>(size));
    const bool fits = sched_getaffinity(0, bytes, set) == 0;
    for (int cpu = 0; fits && cpu < size; ++cpu)
      if (CPU_ISSET_S(static_cast<size_t>(cpu), bytes, set))
        cpus.push_back(
            {cpu, Topology(cpu, "core_id"), Topology(cpu, "physical_package_id"), NumaNode(cpu)});
    CPU_FREE(set);
    if (fits) break;
  }
  // Hardware threads of one core often have numbers that are far apart.
  std::sort(cpus.begin(), cpus.end(), [](const Cpu& a, const Cpu& b) {
    return std::tie(a.socket, a.core, a.id) < std::tie(b.socket, b.core, b.id);
  });
  return cpus;
}

}  // namespace dtrun::launcher
