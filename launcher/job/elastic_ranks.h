#ifndef DTRUN_LAUNCHER_JOB_ELASTIC_RANKS_H_
#define DTRUN_LAUNCHER_JOB_ELASTIC_RANKS_H_

#include <chrono>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "launcher/job/elastic_hosts.h"
#include "launcher/job/host_agents.h"
#include "launcher/job/recovery.h"
#include "launcher/plan/job_options.h"
#include "launcher/plan/job_plan.h"
#include "launcher/support/poller.h"

namespace dtrun::launcher {

/// The ranks of a job with --restarts: watches them and the hosts, and carries out what Recovery
/// decides. In other jobs it only knows where the ranks are.
class ElasticRanks {
 public:
  /// `plan` and `agents` outlive this object. `say` prints a line.
  ElasticRanks(
      Poller& poller, const Options& options, const Plan& plan, HostAgents& agents,
      std::function<void(const std::string&)> say);

  /// Tells the agents of the first epoch. Call it before the ranks start.
  void Begin();
  /// Goes on after lost hosts as long as that is possible: `HostAgents::lost` is then "". Requires
  /// --restarts.
  void ReplaceLostHosts();
  /// Uses hosts that have come, and starts lost ranks again. Returns why the job is to end.
  /// Requires --restarts.
  std::optional<Verdict> Tick();

  /// Whether all ranks are to be ended, because the engine starts the job again
  /// (LaunchEngine::starts_again). True once for each time.
  bool TakeStop() { return std::exchange(stop_, false); }
  /// Where the ranks are to be started again, once all have ended; nullopt: not yet. The caller
  /// starts the engine at once. Returned once for each time.
  std::optional<Restart> TakeStart();

  /// The hosts of the ranks as the engine numbers them, and the rank that it saw killed first.
  std::vector<base::HostSlots> placement() const;
  void Suspect(int rank);

  const Recovery& recovery() const { return recovery_; }
  /// The processes that this object has started.
  std::vector<pid_t> processes() const;
  /// The host of each launch number, for messages.
  std::vector<base::HostSlots> names() const { return recovery_.places().Names(); }
  /// Whether `names` has changed since the last call.
  bool TakeChange() { return std::exchange(changed_, false); }

 private:
  using Clock = std::chrono::steady_clock;

  bool ReplaceLostHost();
  void LookForHosts();
  void AddHosts();
  int Wanted() const;
  std::vector<std::string> SeatRanks();
  std::optional<Verdict> Recover();
  base::LaunchEnv LaunchOf(const Membership::Layout& layout) const;
  std::vector<std::string> VariablesOf(const base::LaunchEnv& launch, int first_host) const;
  HostAgents::RankCommand CommandOf() const;
  std::vector<std::string> PlaceOf(int rank) const;

  const Options& options_;
  const Plan& plan_;
  HostAgents& agents_;
  std::function<void(const std::string&)> say_;
  Recovery recovery_;
  std::optional<HostDiscovery> discovery_;
  HostPool pool_;
  base::LaunchEnv launch_;              // hosts and members of the current epoch
  std::vector<std::string> variables_;  // of the current epoch
  std::set<std::string> refused_;       // hosts whose refusal was printed
  bool changed_ = false;
  bool stop_ = false, start_ = false;  // of an engine that starts again
};

}  // namespace dtrun::launcher

#endif  // DTRUN_LAUNCHER_JOB_ELASTIC_RANKS_H_
