#ifndef DTRUN_LAUNCHER_JOB_MEMBERSHIP_H_
#define DTRUN_LAUNCHER_JOB_MEMBERSHIP_H_

#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/launch_env.h"

namespace dtrun::launcher {

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

#endif  // DTRUN_LAUNCHER_JOB_MEMBERSHIP_H_
