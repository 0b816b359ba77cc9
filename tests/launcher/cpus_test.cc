#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "launcher/plan/cpu_binding.h"

namespace dtrun::launcher {
namespace {

using Cpus = std::vector<int>;

ReadFile Files(std::map<std::string, std::string> files) {
  return [files](const std::string& path) -> std::optional<std::string> {
    const auto file = files.find(path);
    return file == files.end() ? std::nullopt : std::optional(file->second);
  };
}

TEST_CASE("a single rank on a host uses all CPUs and is not pinned") {
  CHECK(PlanCpus({0, 1, 2, 3}, {}, 0, 1) == CpuPlan{{}, 4, false});
}

TEST_CASE("the ranks of a host divide its CPUs") {
  const Cpus allowed = {2, 3, 4, 5, 8};
  CHECK(PlanCpus(allowed, {}, 0, 2) == CpuPlan{{2, 3, 4}, 3, false});
  CHECK(PlanCpus(allowed, {}, 1, 2) == CpuPlan{{5, 8}, 2, false});
}

TEST_CASE("every CPU goes to exactly one rank") {
  Cpus allowed(13);
  std::iota(allowed.begin(), allowed.end(), 0);
  for (int ranks = 2; ranks <= 13; ++ranks) {
    Cpus given;
    for (int rank = 0; rank < ranks; ++rank) {
      const CpuPlan plan = PlanCpus(allowed, {}, rank, ranks);
      CHECK(plan.threads == static_cast<int>(plan.pinned.size()));
      given.insert(given.end(), plan.pinned.begin(), plan.pinned.end());
    }
    CHECK(given == allowed);
  }
}

TEST_CASE("with more ranks than CPUs no rank is pinned and each rank has one thread") {
  CHECK(PlanCpus({0, 1}, {}, 2, 3) == CpuPlan{{}, 1, true});
}

TEST_CASE("a quota limits the number of threads but not the CPUs") {
  CHECK(PlanCpus({0, 1, 2, 3}, 2.0, 0, 1) == CpuPlan{{}, 2, false});
  CHECK(PlanCpus({0, 1, 2, 3}, 2.5, 1, 2) == CpuPlan{{2, 3}, 1, false});
  CHECK(PlanCpus({0, 1, 2, 3}, 100.0, 1, 2) == CpuPlan{{2, 3}, 2, false});
  CHECK(PlanCpus({0, 1, 2, 3}, 0.5, 0, 1) == CpuPlan{{}, 1, false});
}

TEST_CASE("with more ranks than CPUs in the quota no rank is pinned") {
  CHECK(PlanCpus({0, 1, 2, 3}, 1.5, 0, 2) == CpuPlan{{}, 1, true});
}

TEST_CASE("under cgroup version 2 the quota is the lowest limit of the group and its parents") {
  CHECK(
      CpuQuota(Files({
          {"/proc/self/cgroup", "0::/a/b\n"},
          {"/sys/fs/cgroup/a/b/cpu.max", "max 100000\n"},
          {"/sys/fs/cgroup/a/cpu.max", "150000 100000\n"},
      })) == 1.5);
}

TEST_CASE("under cgroup version 1 the quota is found at the root that a container sees") {
  CHECK(
      CpuQuota(Files({
          {"/proc/self/cgroup", "5:memory:/x\n4:cpu,cpuacct:/docker/1f2e\n0::/\n"},
          {"/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "50000\n"},
          {"/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n"},
      })) == 0.5);
}

TEST_CASE("without a limit there is no quota") {
  CHECK(CpuQuota(Files({})) == std::nullopt);
  CHECK(
      CpuQuota(Files({
          {"/proc/self/cgroup", "4:cpu:/\n0::/\n"},
          {"/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n"},
          {"/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n"},
          {"/sys/fs/cgroup/cpu.max", "max 100000\n"},
      })) == std::nullopt);
}

TEST_CASE("this process may run on at least one CPU") { CHECK_FALSE(AllowedCpus().empty()); }

// Two sockets, each a NUMA node, of two cores with two hardware threads.
const std::vector<Cpu> kMachine = {{0, 0, 0, 0}, {4, 0, 0, 0}, {1, 1, 0, 0}, {5, 1, 0, 0},
                                   {2, 0, 1, 1}, {6, 0, 1, 1}, {3, 1, 1, 1}, {7, 1, 1, 1}};

CpuPlan Bound(Bind bind, int local_rank, int local_size, std::optional<double> quota = {}) {
  return BindCpus(kMachine, quota, bind, local_rank, local_size);
}

TEST_CASE("--bind core gives each rank whole cores") {
  CHECK(Bound(Bind::kCore, 0, 4) == CpuPlan{{0, 4}, 2, false});
  CHECK(Bound(Bind::kCore, 3, 4) == CpuPlan{{3, 7}, 2, false});
  CHECK(Bound(Bind::kCore, 0, 1) == CpuPlan{{0, 4, 1, 5, 2, 6, 3, 7}, 8, false});
  CHECK(Bound(Bind::kCore, 2, 3) == CpuPlan{{2, 6, 3, 7}, 4, false});
}

TEST_CASE("--bind core is refused if there are more ranks than cores") {
  CHECK_THROWS_WITH(
      Bound(Bind::kCore, 0, 5),
      "--bind core: the host has 5 ranks and 4 usable cores; expected a core for each rank");
}

TEST_CASE("with --bind socket or numa neighbouring ranks share a unit if there are too few") {
  const Bind bind = GENERATE(Bind::kSocket, Bind::kNuma);
  CHECK(Bound(bind, 1, 4) == CpuPlan{{0, 4, 1, 5}, 2, false});
  CHECK(Bound(bind, 2, 4) == CpuPlan{{2, 6, 3, 7}, 2, false});
  CHECK(Bound(bind, 1, 2) == CpuPlan{{2, 6, 3, 7}, 4, false});
  CHECK(Bound(bind, 9, 10) == CpuPlan{{2, 6, 3, 7}, 1, true});
}

TEST_CASE("--bind none lets ranks use all CPUs and divides the threads") {
  CHECK(Bound(Bind::kNone, 1, 2) == CpuPlan{{}, 4, false});
}

TEST_CASE("a quota limits the threads of bound ranks") {
  CHECK(Bound(Bind::kSocket, 0, 2, 4.0) == CpuPlan{{0, 4, 1, 5}, 2, false});
  CHECK(Bound(Bind::kCore, 0, 4, 1.0) == CpuPlan{{0, 4}, 1, false});
}

TEST_CASE("a list of CPUs shows consecutive CPUs as a range") {
  CHECK(CpuList({}) == "");
  CHECK(CpuList({3}) == "3");
  CHECK(CpuList({4, 0, 1, 5, 2, 8}) == "0-2,4-5,8");
}

}  // namespace
}  // namespace dtrun::launcher
