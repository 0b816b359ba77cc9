#ifndef DTRUN_OPS_HIERARCHICAL_CALL_EXCHANGE_H_
#define DTRUN_OPS_HIERARCHICAL_CALL_EXCHANGE_H_

#include <list>
#include <string>
#include <vector>

#include "ops/collective/collective.h"
#include "ops/hierarchical/hierarchical_group.h"

namespace dtrun::ops::hierarchical {

/// Brings a few bytes of every rank to every rank, equally many of each rank. They travel within
/// the host, between the leaders, and within the host again. While a host waits for its own ranks,
/// its leader tells the other hosts so from time to time. So every rank knows which ranks are
/// missing.
class Exchange {
 public:
  Exchange(Group& group, const std::string& mine);

  /// Returns true once the exchange is done. Repeated attempts of a leader are no progress.
  bool Advance();
  /// The bytes of `rank`. Only when the exchange is done.
  const char* of(int rank) const;
  /// The ranks that have not come yet, as far as this rank knows.
  std::vector<int> Missing() const;
  void Abandon();

 private:
  // One attempt to bring all entries to all ranks, in the order of the hosts. If some ranks have
  // not come yet, another attempt follows.
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
  uint64_t entry_bytes_;  // the bytes of a rank, after a word that says that it is here
  std::string mine_, host_block_;
  Work in_;
  std::list<Attempt> attempts_, announcements_;
  base::TimePoint patient_until_;
  base::Duration patience_;
  std::vector<uint64_t> host_offsets_;
  std::vector<int> absent_;     // as of the last attempt
  std::vector<int> announced_;  // to the followers, as absent
  bool told_ = false;           // an attempt has told which ranks are absent
  bool complete_ = false;       // the last attempt has all entries
};

class Exchange;

/// The record of this rank's call for the other ranks: the Call and, if they fit, the counts by
/// rank and the data. All ranks know for every rank which parts fit.
std::string MakeRecord(const Group& group, const Collective& collective);
/// The counts by rank alone, with room for all counts.
std::string MakeTables(const Group& group, const Collective& collective);

/// The records of all ranks' calls.
class CallRecords {
 public:
  CallRecords(const Group& group, const Exchange& records);

  /// True if the counts by rank of any rank did not fit. Then another exchange, of MakeTables,
  /// brings the counts of all ranks.
  bool NeedTables() const;
  void AddTables(const Exchange& tables);

  /// The calls of all ranks. This and the rest are valid as long as the exchanges are.
  Calls calls() const { return Calls(called_.data(), static_cast<int>(called_.size())); }
  /// True if the input of every rank fitted. Only if the calls agree.
  bool AllInline() const;
  /// Computes this rank's output from the inputs in the records.
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
