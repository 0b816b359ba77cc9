#include "runtime/job/topology.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <thread>

#include "base/text.h"

namespace dtrun::runtime {

Placement PlaceByHostList(const std::vector<base::HostSlots>& hosts) {
  Placement placement{.hosts = hosts, .host_of_rank = {}};
  for (int rank = 0; rank < base::RankCount(hosts); ++rank) {
    placement.host_of_rank.push_back(base::HostOfRank(hosts, rank));
  }
  return placement;
}

Placement PlaceByLeaders(const std::vector<int>& leaders, const std::vector<std::string>& names) {
  Placement placement;
  std::vector<int> known;  // the leader of each host
  for (size_t rank = 0; rank < leaders.size(); ++rank) {
    const auto found = std::find(known.begin(), known.end(), leaders[rank]);
    const auto host = static_cast<size_t>(found - known.begin());
    if (found == known.end()) {
      known.push_back(leaders[rank]);
      placement.hosts.push_back({names[rank], 0});
    }
    ++placement.hosts[host].slots;
    placement.host_of_rank.push_back(static_cast<int>(host));
  }
  return placement;
}

Topology TopologyOf(const Placement& placement, int rank) {
  const std::vector<int>& hosts = placement.host_of_rank;
  const int host = hosts[static_cast<size_t>(rank)];
  Topology topology{};
  topology.rank = rank;
  topology.size = static_cast<int32_t>(hosts.size());
  topology.local_size = placement.hosts[static_cast<size_t>(host)].slots;
  topology.local_rank = static_cast<int32_t>(std::count(hosts.begin(), hosts.begin() + rank, host));
  for (int other = 0; other < static_cast<int>(placement.hosts.size()); ++other) {
    if (placement.hosts[static_cast<size_t>(other)].slots <= topology.local_rank) continue;
    ++topology.cross_size;
    topology.cross_rank += other < host ? 1 : 0;
  }
  return topology;
}

std::string AllowedCpus() {
  // The kernel's mask may be larger than cpu_set_t, so the size doubles until the mask fits.
  for (int cpus = 1024; cpus <= 1 << 20; cpus *= 2) {
    cpu_set_t* set = CPU_ALLOC(static_cast<size_t>(cpus));
    const size_t bytes = CPU_ALLOC_SIZE(static_cast<size_t>(cpus));
    const bool known = ::sched_getaffinity(0, bytes, set) == 0;
    std::string mask;
    for (int cpu = 0; known && cpu < cpus; ++cpu) {
      mask += CPU_ISSET_S(static_cast<size_t>(cpu), bytes, set) ? '1' : '0';
    }
    CPU_FREE(set);
    if (known) return mask.substr(0, mask.rfind('1') + 1);
  }
  return std::string(std::max(1u, std::thread::hardware_concurrency()), '1');
}

namespace {

// "200000 100000" allows 200 ms of CPU time per 100 ms. "max 100000" and "-1" are no limit.
std::optional<double> QuotaOf(const std::string& quota, const std::string& period) {
  const auto allowed = base::ParseInteger(quota), every = base::ParseInteger(period);
  if (!allowed || !every || *allowed <= 0 || *every <= 0) return std::nullopt;
  return static_cast<double>(*allowed) / static_cast<double>(*every);
}

std::string FirstLine(const std::filesystem::path& file) {
  std::ifstream stream(file);
  std::string line;
  std::getline(stream, line);
  return line;
}

std::optional<double> QuotaOfGroup(const std::filesystem::path& group) {
  const std::vector<std::string> unified = base::Split(FirstLine(group / "cpu.max"), ' ');
  if (unified.size() == 2) return QuotaOf(unified[0], unified[1]);
  return QuotaOf(FirstLine(group / "cpu.cfs_quota_us"), FirstLine(group / "cpu.cfs_period_us"));
}

}  // namespace

std::optional<int> CpuQuota(const std::string& root) {
  std::optional<double> least;
  std::ifstream groups(root + "/proc/self/cgroup");
  // A line is "4:cpu,cpuacct:/a/b" (version 1) or "0::/a/b" (version 2).
  for (std::string line; std::getline(groups, line);) {
    const std::vector<std::string> fields = base::Split(line, ':');
    if (fields.size() < 3) continue;
    const std::vector<std::string> controllers = base::Split(fields[1], ',');
    const bool cpu = std::find(controllers.begin(), controllers.end(), "cpu") != controllers.end();
    if (!cpu && !fields[1].empty()) continue;
    const std::filesystem::path top = root + "/sys/fs/cgroup" + (cpu ? "/" + fields[1] : "");
    for (std::filesystem::path path = fields[2];; path = path.parent_path()) {
      const auto quota = QuotaOfGroup(top / path.relative_path());
      if (quota && (!least || *quota < *least)) least = quota;
      if (!path.has_relative_path()) break;
    }
  }
  if (!least) return std::nullopt;
  return std::max(1, static_cast<int>(std::ceil(*least)));
}

int CountUnion(const std::vector<std::string>& masks) {
  std::string all;
  for (const std::string& mask : masks) {
    if (mask.size() > all.size()) all.resize(mask.size(), '0');
    for (size_t cpu = 0; cpu < mask.size(); ++cpu) {
      if (mask[cpu] == '1') all[cpu] = '1';
    }
  }
  return static_cast<int>(std::count(all.begin(), all.end(), '1'));
}

}  // namespace dtrun::runtime
