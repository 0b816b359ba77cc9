#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "runtime/job/topology.h"

namespace {

using dtrun::runtime::CountUnion;
using dtrun::runtime::CpuQuota;

// A folder that replaces / and has the control group files of a process.
class FakeRoot {
 public:
  FakeRoot() {
    const char* base = std::getenv("TEST_TMPDIR");
    std::string name = std::string(base == nullptr ? "/tmp" : base) + "/cpus_XXXXXX";
    path_ = ::mkdtemp(name.data());
  }
  ~FakeRoot() { std::filesystem::remove_all(path_); }

  FakeRoot& Write(const std::string& file, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(path_ + file).parent_path());
    std::ofstream(path_ + file) << text << '\n';
    return *this;
  }
  std::optional<int> Quota() const { return CpuQuota(path_); }

 private:
  std::string path_;
};

TEST_CASE("the CPUs of several ranks are counted once") {
  CHECK(CountUnion({"1100", "0110", "1"}) == 3);
}

TEST_CASE("a CPU quota of cgroup version 2 is found and rounded up") {
  FakeRoot root;
  root.Write("/proc/self/cgroup", "0::/job/rank");
  root.Write("/sys/fs/cgroup/job/rank/cpu.max", "150000 100000");
  CHECK(root.Quota() == 2);
}

TEST_CASE("the smallest quota among the parent groups counts") {
  FakeRoot root;
  root.Write("/proc/self/cgroup", "0::/job/rank");
  root.Write("/sys/fs/cgroup/job/rank/cpu.max", "max 100000");
  root.Write("/sys/fs/cgroup/job/cpu.max", "400000 100000");
  root.Write("/sys/fs/cgroup/cpu.max", "800000 100000");
  CHECK(root.Quota() == 4);
}

TEST_CASE("a CPU quota of cgroup version 1 is found") {
  FakeRoot root;
  root.Write("/proc/self/cgroup", "5:memory:/a\n4:cpu,cpuacct:/a\n0::/");
  root.Write("/sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us", "50000");
  root.Write("/sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us", "100000");
  CHECK(root.Quota() == 1);
}

TEST_CASE("no limit and no groups and invalid text are no quota") {
  CHECK(FakeRoot().Quota() == std::nullopt);
  FakeRoot root;
  root.Write("/proc/self/cgroup", "0::/");
  CHECK(root.Quota() == std::nullopt);
  root.Write("/sys/fs/cgroup/cpu.max", "max 100000");
  CHECK(root.Quota() == std::nullopt);
  root.Write("/sys/fs/cgroup/cpu.max", "many few");
  CHECK(root.Quota() == std::nullopt);
}

}  // namespace
