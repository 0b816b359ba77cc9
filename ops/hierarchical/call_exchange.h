#ifndef DTRUN_OPS_HIERARCHICAL_CALL_EXCHANGE_H_
#define DTRUN_OPS_HIERARCHICAL_CALL_EXCHANGE_H_

#include <list>
#include <string>
#include <vector>

#include "ops/collective/collective.h"
#include "ops/hierarchical/hierarchical_group.h"

namespace dtrun::ops::hierarchical {

/// Brings a few bytes of every rank to every rank, equally many of each: within the host, between
/// the leaders, within the host. While a host waits for ranks of its own, its leader tells the
/// others so now and then: every rank knows who is missing.
class Exchange {
 public:
  Exchange(Group& group, const std::string& mine);

  /// True once it is done. That a leader asks again and again is no progress.
  bool Advance();
  /// What `rank` brought. Only when done.
  const char* of(int rank) const;
  /// Ranks that have not come yet, as far as this one knows.
  std::vector<int> Missing() const;
  void Abandon();

 private:
  // One try to hand everything round, in the order of the hosts. It comes too early when some ranks
  // were not here: then there is another one.
  struct Attempt {
    std::string sent, all;
    Work across, out;
    bool crossed = false, handed_out = false;
  };

  bool LeaderAdvance();
  bool FollowerAdvance();
  void StartCrossing(std::string block);
  void StartHandingOut(Attempt& attempt);
  bool PatienceIsOver();
  bool AnnounceSilentHosts(const Attempt& attempt);
  bool IsComplete(const Attempt& attempt);
  std::string WhoIsHere() const;
  std::vector<int> SilentLeaders(const Attempt& attempt) const;
  uint64_t OffsetOf(int rank) const;

  Group& group_;
  uint64_t entry_bytes_;  // what a rank brings, behind a word that says that it is here
  std::string mine_, host_block_;
  Work in_;
  std::list<Attempt> attempts_, announcements_;
  base::TimePoint patient_until_;
  base::Duration patience_;
  std::vector<uint64_t> host_offsets_;
  std::vector<int> absent_;     // as of the last attempt
  std::vector<int> announced_;  // to the followers, as absent
  bool told_ = false;           // some attempt has said who is absent
  bool complete_ = false;       // the last attempt has everything
};

class Exchange;

/// What a rank tells the others about its call: the Call and, as far as there is room, the counts
/// by rank and the data. All ranks know of every rank what had room.
std::string MakeRecord(const Group& group, const Collective& collective);
/// The counts by rank alone, with room for all that there may be.
std::string MakeTables(const Group& group, const Collective& collective);

/// The records of all ranks.
class CallRecords {
 public:
  CallRecords(const Group& group, const Exchange& records);

  /// Somebody's counts by rank had no room: another exchange, of MakeTables, brings everybody's.
  bool NeedTables() const;
  void AddTables(const Exchange& tables);

  /// What follows is valid as long as the exchanges are.
  Calls calls() const { return Calls(called_.data(), static_cast<int>(called_.size())); }
  /// Every rank's input had room. Only when the calls agree.
  bool AllInline() const;
  /// Computes this rank's output from the inputs that came with the records.
  void FinishInline(const Collective& collective) const;

 private:
  const char* Input(int rank) const;
  void Move(const Collective& collective) const;
  void Combine(const Collective& collective) const;

  const Group& group_;
  std::vector<const char*> records_;  // by rank
  std::vector<Called> called_;
};

}  // namespace dtrun::ops::hierarchical

#endif  // DTRUN_OPS_HIERARCHICAL_CALL_EXCHANGE_H_
