#ifndef DTRUN_LAUNCHER_JOB_ELASTIC_HOSTS_H_
#define DTRUN_LAUNCHER_JOB_ELASTIC_HOSTS_H_

#include <sys/types.h>

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/launch_env.h"
#include "launcher/hosts/hosts.h"
#include "launcher/protocol/agent_link.h"
#include "launcher/support/poller.h"

namespace dtrun::launcher {

/// Runs the user's program that names the hosts (--host-discovery-script), once a second. It prints
/// lines of a host file: "node1:2", "node1 slots=2" or "node1".
class HostDiscovery {
 public:
  /// A host without a number of slots has `slots_per_host`; 0: one.
  HostDiscovery(Poller& poller, std::string program, int slots_per_host);
  ~HostDiscovery();
  HostDiscovery(const HostDiscovery&) = delete;
  HostDiscovery& operator=(const HostDiscovery&) = delete;

  /// Starts the program if it is time, and ends a run of more than 20 s. Call it now and then while
  /// the poller waits.
  void Tick(std::chrono::steady_clock::time_point now);
  /// The hosts of the last run; nullopt: no run has ended yet. A run that fails changes nothing.
  const std::optional<std::vector<Host>>& hosts() const { return hosts_; }
  /// Why the last run failed; "": it did not. An equal reason is returned once.
  std::string TakeError();
  /// The running process of the program; -1: none runs.
  pid_t process() const { return child_ ? child_->process : -1; }

 private:
  void Read();
  void End(const std::string& error);

  Poller& poller_;
  std::string program_;
  int slots_per_host_;
  std::optional<PipedProcess> child_;
  std::unique_ptr<Complaints> complaints_;
  std::string output_;
  std::optional<std::vector<Host>> hosts_;
  std::string error_, told_error_;
  std::chrono::steady_clock::time_point started_ = {};
};

/// Waits until the discovery names hosts with at least `slots` slots. Throws LaunchError
/// kUnavailable after `patience`, with the last error or the slots that were found.
std::vector<Host> DiscoverHosts(
    const std::string& program, int slots_per_host, int slots, std::chrono::seconds patience);

/// The hosts that a job may use beyond those that it uses. A host that was lost or could not be
/// used has to wait: 1 s, then twice as long each time, at most 60 s. Pure.
class HostPool {
 public:
  using Time = std::chrono::steady_clock::time_point;

  void SetHosts(std::vector<base::HostSlots> hosts) { hosts_ = std::move(hosts); }
  void Failed(const std::string& name, Time now);
  /// The hosts that may be tried now, in order.
  std::vector<base::HostSlots> Candidates(Time now) const;
  bool Names(const std::string& name) const;

 private:
  struct Wait {
    int failures = 0;
    Time until = {};
  };
  std::vector<base::HostSlots> hosts_;
  std::map<std::string, Wait> waits_;
};

/// The processes of a job that may lose and gain ranks: where each runs, and which are members, the
/// ranks of the current epoch. A process keeps its launch number. A number is vacant if it is no
/// member and has no host. Pure.
class Membership {
 public:
  static constexpr int kNoHost = -1;

  /// The ranks that the job starts with: launch numbers from 0 through `hosts`, which are the hosts
  /// 0, 1 and so on.
  explicit Membership(const std::vector<base::HostSlots>& hosts);

  const std::set<int>& members() const { return members_; }
  bool IsMember(int number) const { return members_.contains(number); }
  void SetMembers(std::set<int> members) { members_ = std::move(members); }

  /// The host of a number; kNoHost: none.
  int HostOf(int number) const;
  bool HasHost(int number) const { return HostOf(number) != kNoHost; }
  /// Puts a number on a host.
  void Seat(int number, int host, const std::string& name);
  /// Takes the host from a number. If it has one, the number is not used again: its process may
  /// still run there.
  void Retire(int number);
  /// Takes the host from all its numbers.
  void LoseHost(int host);
  /// Members without a host.
  std::set<int> Homeless() const;
  /// Numbers with a host that are no members yet.
  std::set<int> Joiners() const;
  /// The lowest vacant number.
  int Vacant() const;

  /// The ranks if `numbers` were the members: DTRUN_HOSTS and DTRUN_MEMBERS. Ranks of one host
  /// follow each other. Hosts follow each other by their lowest number. `numbers` have hosts.
  struct Layout {
    std::vector<base::HostSlots> hosts;
    std::vector<int> members;       ///< launch numbers, by rank
    std::vector<int> host_numbers;  ///< of `hosts`
    int first_host = kNoHost;       ///< the number of the host of rank 0
  };
  Layout LayoutOf(const std::set<int>& numbers) const;

  /// For messages: the host of each launch number that was ever used, in order. The name of a
  /// number's host changes only with Settle, so that a message about a lost rank has its old host.
  std::vector<base::HostSlots> Names() const;
  void Settle(int number);

 private:
  struct Place {
    int host = kNoHost;
    bool is_retired = false;
    std::string name, settled;
  };
  std::vector<Place> places_;  // by launch number
  std::set<int> members_;
};

}  // namespace dtrun::launcher

#endif  // DTRUN_LAUNCHER_JOB_ELASTIC_HOSTS_H_
