// The culprit is the rank that failed first by its host's clock. Ranks that the engine ended do not
// count. A crash or kill shortly after the first failure is the cause of that failure, because
// survivors may end before a killed process does. If no record explains the failure, the engine's
// exit code and events do.

#include "launcher/protocol/exit_record.h"

#include <signal.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "base/text.h"
#include "launcher/hosts/hosts.h"
#include "launcher/support/host_system.h"
#include "launcher/support/launch_error.h"

namespace dtrun::launcher {
namespace {

using base::Text;

// A rank that the engine has ended is the culprit only if the engine reports the same signal. A
// wrapper that mpirun kills by SIGKILL leaves no record.
bool IsVictim(const ExitRecord& record, int engine_code) {
  return EndedForAnother(record) && engine_code != 128 + SIGTERM;
}

template <typename Predicate>
std::optional<ExitRecord> Earliest(const std::vector<ExitRecord>& records, Predicate predicate) {
  std::optional<ExitRecord> earliest;
  for (const ExitRecord& record : records)
    if (predicate(record) && (!earliest || record.time_ns < earliest->time_ns)) earliest = record;
  return earliest;
}

std::string RankAndHost(int rank, const std::vector<base::HostSlots>& hosts) {
  return Text(
      "rank ", rank, " on ", hosts[static_cast<size_t>(base::HostOfRank(hosts, rank))].name);
}

// A program that still runs, exits with code 0 or aborts does not choose the job's exit code.
Verdict BlameStalled(const ExitRecord& record, const std::string& who) {
  const bool unaware = record.end == RankEnd::kRunning || record.value == 0 ||
                       (record.end == RankEnd::kSignaled && record.value == SIGABRT);
  const int code = unaware                            ? static_cast<int>(ExitCode::kLeftEarly)
                   : record.end == RankEnd::kSignaled ? 128 + record.value
                                                      : record.value;
  return {code, Text(who, ": ", record.gave_up), record.rank, !unaware};
}

Verdict BlameGone(int rank, const std::string& who) {
  return {128 + SIGKILL, Text(who, " was killed together with its wrapper"), rank, true};
}

Verdict Blame(const ExitRecord& record, const std::vector<base::HostSlots>& hosts) {
  const std::string who = RankAndHost(record.rank, hosts);
  if (!record.gave_up.empty()) return BlameStalled(record, who);
  switch (record.end) {
    case RankEnd::kExited:
      return {
          record.value, record.in_order ? "" : Text(who, " exited with code ", record.value),
          record.rank, true};
    case RankEnd::kSignaled:
      return {
          128 + record.value, Text(who, " was killed by ", SignalName(record.value)), record.rank,
          true};
    case RankEnd::kNotStarted: {
      const bool missing = record.value == ENOENT;
      const bool lacks_library = record.value == ELIBACC;
      return {
          static_cast<int>(missing ? ExitCode::kNotFound : ExitCode::kNotExecutable),
          Text(
              who, " could not run its program: ",
              lacks_library ? "a shared library was not found (ldd lists the libraries that the "
                              "program needs)"
                            : std::strerror(record.value),
              missing ? " (the program, or the loader that the program names)" : ""),
          record.rank};
    }
    case RankEnd::kHostLost:
      return {
          static_cast<int>(ExitCode::kUnavailable), Text(who, " was lost with its host"),
          record.rank};
    case RankEnd::kRunning:
      if (IsGone(record)) return BlameGone(record.rank, who);
  }
  return {static_cast<int>(ExitCode::kInternal), who + " was still running"};
}

}  // namespace

bool HasFailed(const ExitRecord& record) {
  return (record.end == RankEnd::kExited && !record.gave_up.empty()) ||
         record.end == RankEnd::kSignaled || record.end == RankEnd::kNotStarted ||
         record.end == RankEnd::kHostLost ||
         (record.end == RankEnd::kExited && record.value != 0 &&
          record.value != static_cast<int>(ExitCode::kPreempted));
}

bool WasStopped(const ExitRecord& record) {
  return record.state.stopped_ns > 0 && record.end != RankEnd::kExited;
}

bool IsGone(const ExitRecord& record) {
  return record.end == RankEnd::kRunning && record.time_ns > 0;
}

// The engine sends SIGTERM to all processes of a rank, not to the program alone.
bool EndedForAnother(const ExitRecord& record) {
  return record.end == RankEnd::kSignaled && record.value == SIGTERM && !record.alone;
}

std::string EndOf(const ExitRecord& record, const std::vector<base::HostSlots>& hosts) {
  const std::string told = Blame(record, hosts).message;
  return told.empty() ? Text(RankAndHost(record.rank, hosts), " exited with code ", record.value)
                      : told;
}

Verdict BlameFor(const ExitRecord& record, const std::vector<base::HostSlots>& hosts) {
  return Blame(record, hosts);
}

std::string ShutdownNote(const std::string& folder, int rank) {
  return Text(folder, "/shutdown.", rank);
}

std::string EpochPath(const std::string& folder, int agent) {
  return Text(folder, "/epoch.", agent);
}

namespace {

// Signals that the end of another rank does not cause. An exit code, or SIGABRT after an uncaught
// exception, may be caused by another rank.
bool IsCause(const ExitRecord& record) {
  if (record.end != RankEnd::kSignaled) return false;
  const int signal = record.value;
  return signal == SIGKILL || signal == SIGSEGV || signal == SIGBUS || signal == SIGILL ||
         signal == SIGFPE || (signal == SIGTERM && record.alone);
}

// A killed process counts as ended only when its memory is freed. By then, other ranks may have
// seen closed connections and ended.
constexpr int64_t kKilledLate = 2'000'000'000, kCrashedLate = 100'000'000;

// The rank that caused the end of `first`: a survivor may end before the rank that it has lost.
ExitRecord CauseOf(const ExitRecord& first, const std::vector<ExitRecord>& records) {
  if (IsCause(first)) return first;
  const auto cause = Earliest(records, [&](const ExitRecord& record) {
    const bool killed = record.value == SIGKILL || record.value == SIGTERM;
    return IsCause(record) && !record.spared &&
           record.time_ns - first.time_ns <= (killed ? kKilledLate : kCrashedLate);
  });
  return cause.value_or(first);
}

// The wrapper that was killed before any rank failed. It counts only if it was killed alone: an
// engine that is told to end kills all wrappers of a host together.
std::optional<ExitRecord> KilledWrapper(
    const std::vector<ExitRecord>& records, const ExitRecord& first, int engine_code,
    const std::vector<base::HostSlots>& hosts) {
  constexpr int64_t kTogether = 20'000'000;
  const auto gone = Earliest(records, [](const ExitRecord& record) {
    return IsGone(record) && !record.spared && !record.orphaned;
  });
  if (!gone || gone->time_ns > first.time_ns) return std::nullopt;
  const int host = base::HostOfRank(hosts, gone->rank);
  const bool alone = std::any_of(records.begin(), records.end(), [&](const ExitRecord& record) {
    return base::HostOfRank(hosts, record.rank) == host &&
           record.time_ns > gone->time_ns + kTogether;
  });
  return alone || engine_code == 128 + SIGKILL ? gone : std::nullopt;
}

}  // namespace

ExitRecord FirstCause(const std::vector<ExitRecord>& failed) {
  const auto any = [](const ExitRecord&) { return true; };
  return CauseOf(*Earliest(failed, any), failed);
}

int HostOfDaemon(int daemon, const std::vector<bool>& here) {
  for (size_t host = 0; host < here.size(); ++host)
    if (!here[host] && --daemon == 0) return static_cast<int>(host);
  return -1;
}

Verdict JudgeFailure(
    const std::vector<ExitRecord>& records, int engine_code,
    const std::vector<base::HostSlots>& hosts, const EngineEnd& engine, int daemon_host) {
  const auto culprit = Earliest(records, [&](const ExitRecord& record) {
    return HasFailed(record) && !record.spared && !IsVictim(record, engine_code);
  });
  if (culprit) {
    const auto wrapper = KilledWrapper(records, *culprit, engine_code, hosts);
    return Blame(wrapper ? *wrapper : CauseOf(*culprit, records), hosts);
  }
  if (records.empty()) return engine.none_started;
  // A rank that gave up waiting and was ended before it could exit.
  const auto stalled =
      Earliest(records, [](const ExitRecord& record) { return !record.gave_up.empty(); });
  if (stalled) {
    Verdict verdict = BlameStalled(*stalled, RankAndHost(stalled->rank, hosts));
    verdict.exit_code = engine_code == 1 ? static_cast<int>(ExitCode::kLeftEarly) : engine_code;
    return verdict;
  }
  const auto left =
      Earliest(records, [](const ExitRecord& record) { return record.end == RankEnd::kExited; });
  if (left && engine_code == kLeftCode && !engine.left.empty())
    return {
        static_cast<int>(ExitCode::kLeftEarly),
        Text(RankAndHost(left->rank, hosts), " exited with code ", left->value, engine.left),
        left->rank};
  // A killed wrapper could not report how its program ended.
  const auto is_silent = [](const ExitRecord& record) { return record.end == RankEnd::kRunning; };
  auto silent = Earliest(
      records, [&](const ExitRecord& record) { return is_silent(record) && record.orphaned; });
  if (!silent) silent = Earliest(records, is_silent);
  // Wrappers that the engine kills because of the first one end at the same moment, so the engine's
  // own order decides.
  if (const auto first = Earliest(records, [&](const ExitRecord& record) {
        return is_silent(record) && record.rank == engine.first_lost;
      }))
    silent = first;
  if (!engine.lost_daemon.empty() && (silent || daemon_host >= 0)) {
    const int host = daemon_host >= 0 ? daemon_host : base::HostOfRank(hosts, silent->rank);
    return {
        static_cast<int>(ExitCode::kInternal),
        Text(
            engine.lost_daemon, " on ", hosts[static_cast<size_t>(host)].name,
            " was lost; its ranks were ended")};
  }
  if (daemon_host >= 0)
    return {
        static_cast<int>(ExitCode::kUnavailable),
        Text(
            "the connection to ", hosts[static_cast<size_t>(daemon_host)].name,
            " was lost; the ranks were ended")};
  if (silent && engine_code == 128 + SIGKILL)
    return BlameGone(silent->rank, RankAndHost(silent->rank, hosts));
  return engine.unexplained;
}

std::string SignalName(int signal) {
  const char* name = sigabbrev_np(signal);
  return name == nullptr ? Text("signal ", signal) : Text("SIG", name);
}

namespace {

using base::Text;
using nlohmann::json;

constexpr char kCgroups[] = "/sys/fs/cgroup";
// Version 1 writes "no limit" as a number near the largest one.
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
  // Reads the values in place: copying JSON recurses once per nesting level, and the nesting has no
  // limit.
  const auto space = object.find("space");
  if (space == object.end() || !space->is_array()) return facts;
  for (const json& place : *space) {
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
