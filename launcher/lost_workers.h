#ifndef DTRUN_LAUNCHER_LOST_WORKERS_H_
#define DTRUN_LAUNCHER_LOST_WORKERS_H_

#include <chrono>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/launch_env.h"
#include "launcher/exit_record.h"

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

  /// A line for each worker that the job turns out to have lost.
  std::vector<std::string> Update(const std::vector<ExitRecord>& records, int64_t now_ns);
  /// What to end a job with whose last worker has failed: its servers would wait for others.
  std::optional<Verdict> LastOne(const std::vector<ExitRecord>& records, int64_t now_ns) const;
  /// `records`, with `spared` where that is so.
  std::vector<ExitRecord> Mark(std::vector<ExitRecord> records) const;

 private:
  bool ServersRun(const std::vector<ExitRecord>& records) const;
  bool HasOthers(const std::vector<ExitRecord>& records) const;
  bool IsSure(const ExitRecord& record, int64_t now_ns) const;

  int servers_;
  std::vector<base::HostSlots> hosts_;
  std::set<int> lost_;
};

}  // namespace dtrun::launcher

#endif
