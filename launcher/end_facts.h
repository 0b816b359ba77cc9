#ifndef DTRUN_LAUNCHER_END_FACTS_H_
#define DTRUN_LAUNCHER_END_FACTS_H_

#include <sys/types.h>

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace dtrun::launcher {

/// The file system of a folder.
struct FreeSpace {
  std::string folder;
  int64_t free_bytes = 0;  ///< for this user

  bool operator==(const FreeSpace&) const = default;
};

/// What was true on a rank's host when its program ended badly: the proofs of hints (hints.h).
struct EndFacts {
  int64_t oom_kills = 0;           ///< by the kernel in its memory cgroup, since it started
  std::string memory_cgroup = {};  ///< "": not known
  int64_t memory_limit = 0;        ///< of that cgroup, in bytes; 0: none
  int64_t address_limit = 0;       ///< RLIMIT_AS in bytes; 0: none
  std::vector<FreeSpace> space = {};

  bool operator==(const EndFacts&) const = default;
};

/// As it goes from an agent to dtrun. What is missing or of another kind counts as not known.
nlohmann::json JsonOf(const EndFacts& facts);
EndFacts EndFactsOf(const nlohmann::json& json);

/// The memory cgroup of a process: how often the kernel has killed there for lack of memory. Looked
/// at when a program starts and again when it has ended.
class MemoryCgroup {
 public:
  /// Of `process`; of none where the system does not tell.
  static MemoryCgroup Of(pid_t process);

  /// Adds what has happened since `Of`.
  void AddTo(EndFacts& facts) const;

 private:
  int64_t OomKills() const;

  std::string name_, folder_;
  bool unified_ = false;  // version 2
  int64_t oom_kills_before_ = 0;
};

/// The path of the memory cgroup in the text of /proc/PID/cgroup; `unified` says whether it is one
/// of version 2. "" if there is none.
std::string MemoryCgroupIn(const std::string& proc_cgroup, bool* unified);

/// The soft limit of "Max address space" in the text of /proc/PID/limits; 0: unlimited or not
/// there.
int64_t AddressLimitIn(const std::string& proc_limits);

/// The file systems of these folders, each once, under the first folder that lies on it.
std::vector<FreeSpace> FreeSpaceOf(const std::vector<std::string>& folders);

}  // namespace dtrun::launcher

#endif
