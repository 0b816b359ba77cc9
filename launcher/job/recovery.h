#ifndef DTRUN_LAUNCHER_JOB_RECOVERY_H_
#define DTRUN_LAUNCHER_JOB_RECOVERY_H_

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/launch_env.h"
#include "launcher/protocol/exit_record.h"
#include "launcher/report/job_story.h"

namespace dtrun::launcher {

/// The reaction of a job to lost ranks if they are started again (--restarts). A state machine
/// without input or output: the caller passes the records of the ranks and carries out the orders.
/// recovery.cc has the rules.
class Recovery {
 public:
  /// At most `restarts` losses are recovered from. A rank that is started again runs before
  /// `start_timeout` has passed.
  Recovery(
      int restarts, std::vector<base::HostSlots> hosts,
      std::chrono::nanoseconds start_timeout = std::chrono::seconds(60))
      : restarts_(restarts), hosts_(std::move(hosts)), start_timeout_(start_timeout) {}

  struct Epoch {
    int number;
    std::string why;
  };
  /// The next actions of the caller, in this order.
  struct Orders {
    std::vector<std::string> lines = {};        ///< for the user
    std::optional<Epoch> epoch = std::nullopt;  ///< tell all ranks that this epoch has begun
    std::vector<int> restart = {};              ///< start these ranks again
    std::optional<Verdict> end = std::nullopt;  ///< end the job; no orders follow
  };

  /// Call it when a record may have changed, and now and then.
  Orders Update(const std::vector<ExitRecord>& records, int64_t now_ns);

  /// The hosts have these names from now on.
  void SetHosts(std::vector<base::HostSlots> hosts) { hosts_ = std::move(hosts); }

  /// All losses so far.
  const std::vector<Loss>& losses() const { return losses_; }
  /// The number of losses that have used up a restart.
  int used() const { return used_; }

  /// The pause before the restart of a rank that has failed `vain` times in a row without joining.
  static std::chrono::milliseconds Pause(int vain);

 private:
  // Facts about a rank beyond its record.
  struct Rank {
    int64_t handled_ns = 0;     // the last end that has been answered
    int64_t restart_at_ns = 0;  // 0: none is due
    int64_t starting_ns =
        0;  // since when it starts again, and its record is the old one; 0: it does not
    bool spared = false;  // lost after the work was done
    int vain = 0;         // ends in a row without having joined
    int ends = 0;         // in this loss
  };

  bool IsNew(const ExitRecord& record);
  std::optional<Verdict> NotStarted(int64_t now_ns) const;
  std::optional<Verdict> WhyNotRestarted(
      const std::vector<ExitRecord>& lost, const std::vector<ExitRecord>& records);
  std::optional<Verdict> EndAfterWork(const std::vector<ExitRecord>& records, int64_t now_ns) const;
  void Lose(const std::vector<ExitRecord>& lost, int64_t now_ns, Orders& orders);
  bool TakeRestart(const ExitRecord& record);
  void RestartDue(int64_t now_ns, Orders& orders);
  void LookForRecovery(const std::vector<ExitRecord>& records, int64_t now_ns, Orders& orders);
  std::optional<Verdict> LeftEarly(const std::vector<ExitRecord>& records, int64_t now_ns) const;
  bool AllDone(const std::vector<ExitRecord>& records);
  bool IsBack(const ExitRecord& record) const;
  int size() const { return base::RankCount(hosts_); }

  int restarts_;
  std::vector<base::HostSlots> hosts_;
  std::chrono::nanoseconds start_timeout_;
  std::map<int, Rank> ranks_;
  std::vector<Loss> losses_;
  bool recovering_ = false;  // the last loss is not over
  bool have_met_ = false;    // some rank has joined the job by Init
  int used_ = 0, cost_ = 0;  // restarts of the job, and of this loss
  int epoch_ = 0;
  std::optional<Verdict> blame_;  // of the last loss
  bool over_ = false;
};

}  // namespace dtrun::launcher

#endif  // DTRUN_LAUNCHER_JOB_RECOVERY_H_
