#ifndef DTRUN_OPS_HIERARCHICAL_CALL_RECORDS_H_
#define DTRUN_OPS_HIERARCHICAL_CALL_RECORDS_H_

#include <string>
#include <vector>

#include "ops/collective.h"
#include "ops/hierarchical/group.h"

namespace dtrun::ops::hierarchical {

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

#endif
