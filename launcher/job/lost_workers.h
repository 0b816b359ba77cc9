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

/// Ranks that a job with parameter servers goes on without: all but the servers, as long as one of
/// them is left. Pure: it hears what happens and when, and says what is to be said.
class LostWorkers {
 public:
  /// Ranks [0, servers) are servers; 0: the job has none, and nobody is spared.
  LostWorkers(int servers, std::vector<base::HostSlots> hosts)
      : servers_(servers), hosts_(std::move(hosts)) {}

  /// What a worker that fails may still be: one that has seen its server go.
  static constexpr std::chrono::milliseconds kUntilSure{400};

  /// Whether the job can go on without the ranks of host `host`: they are workers, and not the
  /// last.
  bool CanSpare(size_t host, const std::vector<ExitRecord>& records) const;

  /// A line for each worker that the job turns out to have lost.
  std::vector<std::string> Update(const std::vector<ExitRecord>& records, int64_t now_ns);
  /// The same for those of whom it becomes known when a job is over whose servers ended well.
  std::vector<std::string> AtEnd(const std::vector<ExitRecord>& records);
  /// What to end a job with whose last worker has failed: its servers would wait for others.
  std::optional<Verdict> LastOne(const std::vector<ExitRecord>& records, int64_t now_ns) const;
  /// What to end a job with one of whose servers has failed: nobody else ends it. The first that
  /// has failed is to blame, be it a worker.
  std::optional<Verdict> LostServer(const std::vector<ExitRecord>& records, int64_t now_ns) const;
  /// All servers have done their work, and no worker runs: nobody is waited for, whatever became of
  /// what had started them.
  bool AllDone(const std::vector<ExitRecord>& records) const;
  /// `records`, with `spared` where that is so.
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
