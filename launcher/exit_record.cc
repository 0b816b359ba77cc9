#include "launcher/exit_record.h"

#include <fcntl.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/text.h"
#include "launcher/hosts.h"
#include "launcher/launch_error.h"

namespace dtrun::launcher {
namespace {

using base::Text;

constexpr char kPrefix[] = "rank.";
constexpr int kSshFailed = 255;

std::string FileName(const std::string& folder, int rank) {
  return Text(folder, '/', kPrefix, rank);
}

int64_t NowNs() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

// A wrapper that was killed while it wrote leaves less than a whole line: its rank counts as
// running.
ExitRecord ReadRecord(const std::string& file, int rank) {
  std::ifstream stream(file);
  int end = 0;
  ExitRecord record = {.rank = rank};
  if (stream >> end >> record.value >> record.time_ns && stream.get() == '\n')
    record.end = static_cast<RankEnd>(end);
  return record;
}

bool Failed(const ExitRecord& record) {
  return (record.end == RankEnd::kExited && !record.gave_up.empty()) ||
         record.end == RankEnd::kSignaled || record.end == RankEnd::kNotStarted ||
         (record.end == RankEnd::kExited && record.value != 0);
}

// mpirun ends the other ranks by SIGTERM, so a rank that died of it is the culprit only if mpirun
// says the same. (A wrapper that mpirun kills by SIGKILL leaves no record.)
bool IsVictim(const ExitRecord& record, int engine_code) {
  return record.end == RankEnd::kSignaled && record.value == SIGTERM &&
         engine_code != 128 + SIGTERM;
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

// A trainer that does not know of the error, or leaves as if nothing was, has no say in the code.
Verdict BlameStalled(const ExitRecord& record, const std::string& who) {
  const bool unaware = record.end == RankEnd::kRunning || record.value == 0 ||
                       (record.end == RankEnd::kSignaled && record.value == SIGABRT);
  const int code = unaware                            ? static_cast<int>(ExitCode::kLeftEarly)
                   : record.end == RankEnd::kSignaled ? 128 + record.value
                                                      : record.value;
  return {code, Text(who, ": ", record.gave_up)};
}

Verdict Blame(const ExitRecord& record, const std::vector<base::HostSlots>& hosts) {
  const std::string who = RankAndHost(record.rank, hosts);
  if (!record.gave_up.empty()) return BlameStalled(record, who);
  switch (record.end) {
    case RankEnd::kExited:
      return {record.value, record.in_order ? "" : Text(who, " exited with code ", record.value)};
    case RankEnd::kSignaled:
      return {
          128 + record.value, Text(
                                  who, " was killed by ", SignalName(record.value),
                                  record.value == SIGKILL ? " (often: out of memory)" : "")};
    case RankEnd::kNotStarted: {
      const bool missing = record.value == ENOENT;
      return {
          static_cast<int>(missing ? ExitCode::kNotFound : ExitCode::kNotExecutable),
          Text(
              who, " could not run its program: ", std::strerror(record.value),
              missing ? " (the program or the loader it names)" : "")};
    }
    case RankEnd::kRunning: break;
  }
  return {static_cast<int>(ExitCode::kInternal), who + " was still running"};
}

}  // namespace

std::string ShutdownNote(const std::string& folder, int rank) {
  return Text(folder, "/shutdown.", rank);
}

ExitRecordFile::ExitRecordFile(const std::string& folder, int rank)
    : file_(open(
          FileName(folder, rank).c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
          0600)) {}

ExitRecordFile::~ExitRecordFile() {
  if (file_ >= 0) close(file_);
}

void ExitRecordFile::Update(RankEnd end, int value) {
  const std::string line = Text(static_cast<int>(end), ' ', value, ' ', NowNs(), '\n');
  if (file_ < 0) return;
  // A full disk costs the report its detail, not the job.
  [[maybe_unused]] const ssize_t written = pwrite(file_, line.data(), line.size(), 0);
}

std::vector<ExitRecord> ReadExitRecords(const std::string& folder) {
  std::vector<ExitRecord> records;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename();
    if (!name.starts_with(kPrefix)) continue;
    const auto rank = base::ParseInteger(name.substr(sizeof kPrefix - 1));
    if (!rank) continue;
    records.push_back(ReadRecord(entry.path(), static_cast<int>(*rank)));
    records.back().in_order =
        std::filesystem::exists(ShutdownNote(folder, static_cast<int>(*rank)), error);
  }
  return records;
}

Verdict JudgeFailure(
    const std::vector<ExitRecord>& records, int engine_code,
    const std::vector<base::HostSlots>& hosts, int watched_ranks) {
  const auto culprit = Earliest(records, [&](const ExitRecord& record) {
    return Failed(record) && !IsVictim(record, engine_code);
  });
  if (culprit) return Blame(*culprit, hosts);
  if (records.empty() && (watched_ranks > 0 || engine_code == kSshFailed))
    return {
        static_cast<int>(ExitCode::kUnavailable),
        Text(
            "Open MPI could not start the job on ", HostList(hosts), " (mpirun ended with code ",
            engine_code, "); --verbose shows what it says")};
  // Where the rank that mpirun saw is on another host, one of ours may know why.
  const auto stalled =
      Earliest(records, [](const ExitRecord& record) { return !record.gave_up.empty(); });
  if (stalled) {
    const std::string message = BlameStalled(*stalled, RankAndHost(stalled->rank, hosts)).message;
    return {engine_code == 1 ? static_cast<int>(ExitCode::kLeftEarly) : engine_code, message};
  }
  if (watched_ranks < base::RankCount(hosts))
    return {engine_code, Text("a rank on another host failed with code ", engine_code)};
  const auto left =
      Earliest(records, [](const ExitRecord& record) { return record.end == RankEnd::kExited; });
  if (left && engine_code == 1)
    return {
        static_cast<int>(ExitCode::kLeftEarly),
        RankAndHost(left->rank, hosts) +
            " exited with code 0 without MPI_Finalize; Open MPI then ended the job"};
  // MPI_Abort makes mpirun end all ranks alike.
  return {
      engine_code, Text(
                       "a rank called MPI_Abort with code ", engine_code,
                       " (--verbose shows what Open MPI says)")};
}

std::string SignalName(int signal) {
  const char* name = sigabbrev_np(signal);
  return name == nullptr ? Text("signal ", signal) : Text("SIG", name);
}

}  // namespace dtrun::launcher
