#include "launcher/bind.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/text.h"
#include "launcher/launch_error.h"

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

// CPUs that a rank gets together or not at all, in the machine's order.
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

// Each rank has one group or several of its own.
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

// More ranks than groups: neighbours share one.
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
        "--bind core: the host has ", local_size, " ranks, but only ", groups.size(),
        groups.size() == 1 ? " core" : " cores", " that they may use"));
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

}  // namespace dtrun::launcher
