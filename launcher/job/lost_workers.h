#ifndef DTRUN_LAUNCHER_JOB_LOST_WORKERS_H_
#define DTRUN_LAUNCHER_JOB_LOST_WORKERS_H_

#include <chrono>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/launch_env.h"
#include "launcher/protocol/exit_record.h"

namespace dtrun::launcher {

/// The lost workers of a job with parameter servers. The job goes on without them as long as one
/// worker is left. Pure: the caller passes the records and the time, and prints the returned lines.
class LostWorkers {
 public:
  /// Ranks [0, servers) are the servers. 0: the job has none, and every rank is needed.
  LostWorkers(int servers, std::vector<base::HostSlots> hosts)
      : servers_(servers), hosts_(std::move(hosts)) {}

  /// A worker counts as lost only this long after its failure: until then, a lost server may turn
  /// out to be the cause.
  static constexpr std::chrono::milliseconds kUntilSure{400};

  /// Whether the job can go on without the ranks of `host`: all are workers, and other workers are
  /// left.
  bool CanSpare(size_t host, const std::vector<ExitRecord>& records) const;

  /// A line for each worker newly found to be lost.
  std::vector<std::string> Update(const std::vector<ExitRecord>& records, int64_t now_ns);
  /// The same for workers found to be lost at the end of a job, if all servers ended well.
  std::vector<std::string> AtEnd(const std::vector<ExitRecord>& records);
  /// The verdict if the last worker has failed: the servers would wait for other workers.
  std::optional<Verdict> LastOne(const std::vector<ExitRecord>& records, int64_t now_ns) const;
  /// The verdict if a server has failed: the engine may not end such a job. The first rank that
  /// failed is the culprit, even if it is a worker.
  std::optional<Verdict> LostServer(const std::vector<ExitRecord>& records, int64_t now_ns) const;
  /// Whether all servers have ended well and every worker has ended well or failed. The job is then
  /// complete, even if the engine still runs.
  bool AllDone(const std::vector<ExitRecord>& records) const;
  /// `records`, with `spared` set for lost workers.
  std::vector<ExitRecord> Mark(std::vector<ExitRecord> records) const;

 private:
  bool ServersRun(const std::vector<ExitRecord>& records) const;
  bool HasOthers(const std::vector<ExitRecord>& records) const;
  std::vector<std::string> Lose(const std::vector<const ExitRecord*>& records, const char* what);
  bool IsSure(const ExitRecord& record, int64_t now_ns) const;
  static bool IsOld(const ExitRecord& record, int64_t now_ns);
  static bool IsLost(const ExitRecord& record) { return HasFailed(record) || IsGone(record); }

  int servers_;
  std::vector<base::HostSlots> hosts_;
  std::set<int> lost_;
};

}  // namespace dtrun::launcher

#endif
