#include "launcher/end_facts.h"

#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "base/text.h"
#include "launcher/system_file.h"

namespace dtrun::launcher {
namespace {

using base::Text;
using nlohmann::json;

constexpr char kCgroups[] = "/sys/fs/cgroup";
// Version 1 says "no limit" by a number near the largest one.
constexpr int64_t kNoLimit = int64_t{1} << 60;

std::string Read(const std::string& path) { return ReadFileOfSystem(path).value_or(""); }

// "oom_kill 3" -> 3
int64_t Counter(const std::string& text, const std::string& name) {
  for (const std::string& line : base::Split(text, '\n'))
    if (line.starts_with(name + " "))
      return base::ParseInteger(line.substr(name.size() + 1)).value_or(0);
  return 0;
}

std::string FirstLine(const std::string& text) { return text.substr(0, text.find('\n')); }

template <typename Value>
Value ValueOf(const json& object, const char* key, const Value& otherwise) {
  try {
    return object.value(key, otherwise);
  } catch (const json::exception&) {
    return otherwise;
  }
}

}  // namespace

json JsonOf(const EndFacts& facts) {
  json space = json::array();
  for (const FreeSpace& place : facts.space)
    space.push_back({{"folder", place.folder}, {"free_bytes", place.free_bytes}});
  return {
      {"oom_kills", facts.oom_kills},       {"memory_cgroup", facts.memory_cgroup},
      {"memory_limit", facts.memory_limit}, {"address_limit", facts.address_limit},
      {"space", std::move(space)},
  };
}

EndFacts EndFactsOf(const json& object) {
  if (!object.is_object()) return {};
  EndFacts facts = {
      .oom_kills = ValueOf<int64_t>(object, "oom_kills", 0),
      .memory_cgroup = ValueOf<std::string>(object, "memory_cgroup", ""),
      .memory_limit = ValueOf<int64_t>(object, "memory_limit", 0),
      .address_limit = ValueOf<int64_t>(object, "address_limit", 0)};
  for (const json& place : ValueOf<json>(object, "space", json::array())) {
    if (!place.is_object()) continue;
    facts.space.push_back(
        {ValueOf<std::string>(place, "folder", ""), ValueOf<int64_t>(place, "free_bytes", 0)});
  }
  return facts;
}

std::string MemoryCgroupIn(const std::string& proc_cgroup, bool* unified) {
  std::string of_version_2;
  for (const std::string& line : base::Split(proc_cgroup, '\n')) {
    // HIERARCHY:CONTROLLER,CONTROLLER...:PATH
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string path = line.substr(second + 1);
    if (line.starts_with("0::")) of_version_2 = path;
    for (const std::string& controller :
         base::Split(line.substr(first + 1, second - first - 1), ',')) {
      if (controller != "memory") continue;
      *unified = false;
      return path;
    }
  }
  *unified = true;
  return of_version_2;
}

MemoryCgroup MemoryCgroup::Of(pid_t process) {
  MemoryCgroup cgroup;
  cgroup.name_ = MemoryCgroupIn(Read(Text("/proc/", process, "/cgroup")), &cgroup.unified_);
  if (cgroup.name_.empty()) return cgroup;
  cgroup.folder_ = Text(kCgroups, cgroup.unified_ ? "" : "/memory", cgroup.name_);
  cgroup.oom_kills_before_ = cgroup.OomKills();
  return cgroup;
}

int64_t MemoryCgroup::OomKills() const {
  return Counter(Read(folder_ + (unified_ ? "/memory.events" : "/memory.oom_control")), "oom_kill");
}

void MemoryCgroup::AddTo(EndFacts& facts) const {
  if (folder_.empty()) return;
  facts.memory_cgroup = name_;
  facts.oom_kills = OomKills() - oom_kills_before_;
  const std::string limit = Read(folder_ + (unified_ ? "/memory.max" : "/memory.limit_in_bytes"));
  const int64_t bytes = base::ParseInteger(FirstLine(limit)).value_or(0);
  facts.memory_limit = bytes < kNoLimit ? bytes : 0;
}

int64_t AddressLimitIn(const std::string& proc_limits) {
  constexpr std::string_view kName = "Max address space";
  for (const std::string& line : base::Split(proc_limits, '\n')) {
    if (!line.starts_with(kName)) continue;
    const size_t begin = line.find_first_not_of(' ', kName.size());
    if (begin == std::string::npos) return 0;
    return base::ParseInteger(line.substr(begin, line.find(' ', begin) - begin)).value_or(0);
  }
  return 0;
}

std::vector<FreeSpace> FreeSpaceOf(const std::vector<std::string>& folders) {
  std::vector<FreeSpace> space;
  std::set<dev_t> seen;
  for (const std::string& folder : folders) {
    struct stat status = {};
    struct statvfs system = {};
    if (stat(folder.c_str(), &status) != 0 || !seen.insert(status.st_dev).second) continue;
    if (statvfs(folder.c_str(), &system) != 0 || system.f_blocks == 0) continue;
    const auto blocks = geteuid() == 0 ? system.f_bfree : system.f_bavail;
    space.push_back({folder, static_cast<int64_t>(blocks * system.f_frsize)});
  }
  return space;
}

}  // namespace dtrun::launcher
