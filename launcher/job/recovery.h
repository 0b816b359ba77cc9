#ifndef DTRUN_LAUNCHER_JOB_RECOVERY_H_
#define DTRUN_LAUNCHER_JOB_RECOVERY_H_

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/elastic_files.h"
#include "base/launch_env.h"
#include "launcher/job/elastic_hosts.h"
#include "launcher/protocol/exit_record.h"
#include "launcher/report/job_story.h"

namespace dtrun::launcher {

/// What a job may do about lost ranks.
struct RecoveryLimits {
  int restarts = 0;   ///< losses after which ranks are started again
  int min_ranks = 0;  ///< the job goes on with at least this many ranks; 0: it needs all
  /// A rank that is started again runs before this time has passed.
  std::chrono::nanoseconds start_timeout = std::chrono::seconds(60);
  /// How long a job with too few ranks waits for hosts.
  std::chrono::nanoseconds elastic_timeout = std::chrono::seconds(600);
  bool all_together = false;  ///< after a loss, all ranks end and start again
};

/// The reaction of a job to lost ranks, and to hosts that come (--restarts, --min-np). A state
/// machine without input or output: the caller passes the records of the ranks, puts ranks on hosts
/// (places), and carries out the orders. recovery.cc has the rules.
class Recovery {
 public:
  Recovery(RecoveryLimits limits, const std::vector<base::HostSlots>& hosts)
      : limits_(limits), places_(hosts) {}

  struct Epoch {
    int number;
    base::EpochCause why;
    bool paused = false;  ///< no process is a rank until the next epoch
  };
  /// The next actions of the caller, in this order.
  struct Orders {
    std::vector<std::string> lines = {};        ///< for the user
    std::optional<Epoch> epoch = std::nullopt;  ///< tell all processes that this epoch has begun
    bool stop = false;              ///< all_together: end all ranks; orders to start them follow
    std::vector<int> restart = {};  ///< start these ranks
    std::optional<Verdict> end = std::nullopt;  ///< end the job; no orders follow
  };

  /// Call it when a record or a place may have changed, and now and then.
  Orders Update(const std::vector<ExitRecord>& records, int64_t now_ns);

  /// all_together: rank `number` was the first that the engine saw killed. If the wrappers of
  /// several ranks are gone, this rank is the lost one.
  void Suspect(int number) { suspect_ = number; }

  /// The members, and the hosts of all ranks. A caller that takes the host of a member has marked
  /// its record as lost. A number that gets a host is started there and becomes a member.
  Membership& places() { return places_; }
  const Membership& places() const { return places_; }
  /// The number of the ranks that the job has, or waits for.
  int ranks() const { return static_cast<int>(places_.members().size()); }
  bool is_paused() const { return paused_ns_ > 0; }
  /// Whether all ranks are being ended, to be started again.
  bool is_stopping() const { return is_stopping_; }
  int epoch() const { return epoch_; }

  /// The records of the members alone.
  std::vector<ExitRecord> OfMembers(const std::vector<ExitRecord>& records) const;
  /// `records`, with `spared` set for ranks that are no members any more.
  std::vector<ExitRecord> Mark(std::vector<ExitRecord> records) const;

  /// All losses and gains of ranks so far.
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
    bool spared = false;             // lost after the work was done
    int vain = 0;                    // ends in a row without having joined
    int ends = 0;                    // in this loss
    int host = Membership::kNoHost;  // on which it was started as a joiner
    int64_t invited_ns = 0;          // when that was
  };

  bool IsNew(const ExitRecord& record);
  bool AwaitsCause(const std::vector<ExitRecord>& lost, int64_t now_ns) const;
  ExitRecord FirstOf(const std::vector<ExitRecord>& lost) const;
  std::vector<ExitRecord> Causes(const std::vector<ExitRecord>& lost);
  std::optional<Verdict> LeftBefore(
      const std::vector<ExitRecord>& lost, const std::vector<ExitRecord>& members) const;
  void StopAll(int64_t now_ns, int64_t start_at_ns, Orders& orders);
  bool SomeMayStart(const std::vector<ExitRecord>& records) const;
  void StartAll(const std::vector<ExitRecord>& records, int64_t now_ns, Orders& orders);
  std::optional<Verdict> NotStarted(int64_t now_ns) const;
  std::optional<Verdict> WhyNotRestarted(
      const std::vector<ExitRecord>& lost, const std::vector<ExitRecord>& members);
  std::optional<Verdict> EndAfterWork(const std::vector<ExitRecord>& members, int64_t now_ns) const;
  void Lose(const std::vector<ExitRecord>& lost, int64_t now_ns, Orders& orders);
  std::set<int> Leavers(const std::vector<ExitRecord>& lost) const;
  bool MayLeave(const std::set<int>& leavers) const;
  void Leave(const std::set<int>& leavers);
  void Begin(const std::string& why, Orders& orders);
  void LoseJoiners(const std::vector<ExitRecord>& records, int64_t now_ns, Orders& orders);
  void StartJoiners(const std::vector<ExitRecord>& records, int64_t now_ns);
  void TakeJoiners(const std::vector<ExitRecord>& records, int64_t now_ns, Orders& orders);
  bool IsReady(const ExitRecord& record) const;
  void Resume(int64_t now_ns, Orders& orders);
  std::optional<Verdict> WaitedTooLong(int64_t now_ns) const;
  void TakeRestart(const ExitRecord& record);
  bool HasRestarts() const { return used_ <= limits_.restarts; }
  void RestartDue(int64_t now_ns, Orders& orders);
  void LookForRecovery(const std::vector<ExitRecord>& members, int64_t now_ns, Orders& orders);
  std::optional<Verdict> LeftEarly(const std::vector<ExitRecord>& members, int64_t now_ns) const;
  bool AllDone(const std::vector<ExitRecord>& members);
  bool IsBack(const ExitRecord& record) const;
  bool IsLate(int64_t since_ns, int64_t now_ns) const;
  int64_t StartTimeout() const;
  std::string RankOnHost(int rank) const;
  std::string HostsOf(const std::set<int>& numbers) const;

  RecoveryLimits limits_;
  Membership places_;
  std::map<int, Rank> ranks_;
  std::vector<Loss> losses_;
  bool recovering_ = false;  // the last loss or gain is not over
  bool have_met_ = false;    // some rank has joined the job by Init
  int used_ = 0, cost_ = 0;  // restarts of the job, and of this loss
  int epoch_ = 0;
  int64_t paused_ns_ = 0;         // since when the job waits for hosts; 0: it does not
  std::optional<Verdict> blame_;  // of the last loss
  bool over_ = false;
  bool is_stopping_ = false;  // all_together: since the order to end the ranks
  int64_t stopped_ns_ = 0;    // since when
  bool has_started_again_ = false;
  int suspect_ = -1;
  int vain_ = 0;  // all_together: starts in a row after which the job has not worked
};

}  // namespace dtrun::launcher

#endif  // DTRUN_LAUNCHER_JOB_RECOVERY_H_
