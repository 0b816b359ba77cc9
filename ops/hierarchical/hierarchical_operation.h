#ifndef DTRUN_OPS_HIERARCHICAL_HIERARCHICAL_OPERATION_H_
#define DTRUN_OPS_HIERARCHICAL_HIERARCHICAL_OPERATION_H_

#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ops/collective/collective.h"
#include "ops/engine/progress_engine.h"
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

/// Collectives on one lane that start together.
using Parts = std::vector<Collective>;

/// A piece of a collective's data. It goes up within the host, across between the hosts, and down
/// within the host. The parts of each step are requested when the step before has ended.
class Chunk {
 public:
  virtual ~Chunk() = default;
  virtual Parts Up() { return {}; }
  virtual Parts Across() { return {}; }
  virtual Parts Down() { return {}; }
};

/// How the data of one collective is cut into chunks. The chunks of all ranks correspond.
class Plan {
 public:
  virtual ~Plan() = default;
  virtual uint64_t chunk_count() const = 0;
  virtual std::unique_ptr<Chunk> MakeChunk(uint64_t index) = 0;
  /// True if the chunks only go across, on the communicator of all ranks.
  virtual bool flat() const { return false; }
};

/// Plans a collective on whose calls all ranks agree. `calls` is used only during this call.
std::unique_ptr<Plan> MakePlan(Group& group, const Collective& collective, const Calls& calls);

/// Moves the chunks of a plan up, across and down, several at a time. All ranks make their movers
/// in the same order, so each mover has the same places on the lanes of all ranks.
class Mover {
 public:
  Mover(Group& group, std::unique_ptr<Plan> plan);

  /// Returns true if a step has started or ended.
  bool Advance();
  bool done() const { return first_ == plan_->chunk_count(); }
  /// The ranks, of the job, for which the first chunk under way waits.
  std::vector<int> Awaited() const;
  void Abandon();

 private:
  enum Step { kUp, kAcross, kDown, kArrived };

  struct Journey {
    std::unique_ptr<Chunk> chunk = {};
    Step step = kUp;
    bool started = false;
    std::vector<Work> works = {};  // of this step
  };

  bool AdvanceJourney(Journey& journey, uint64_t index);
  bool StartStep(Journey& journey, uint64_t index);
  Parts PartsOf(Journey& journey) const;
  Lane& LaneOf(Step step) const;
  Communicator* CommunicatorOf(Step step) const;

  Group& group_;
  std::unique_ptr<Plan> plan_;
  uint64_t first_place_[kArrived] = {};  // on each lane: the place of chunk 0
  uint64_t first_ = 0;                   // chunks before this one have arrived
  uint64_t waiting_to_cross_ = 0;        // chunks under way that have not crossed yet
  std::deque<Journey> under_way_;        // chunks first_, first_ + 1, ...
};

/// A collective over several hosts, made of other collectives. See hierarchical_operation.cc.
class HierarchicalOperation : public Operation {
 public:
  HierarchicalOperation(const std::shared_ptr<Group>& group, Collective collective);

  Progress Advance() override;
  std::vector<int> Missing() const override;
  std::vector<int> Awaited() const override;
  void GiveUp() override { AbandonParts(); }
  void TimeIsUp(const std::vector<int>& late) override { group_->flat->NoteLate(late); }

 private:
  enum class Phase { kStarted, kWaitingForTurn, kComparing, kComparingTables, kMoving };

  Progress AdvancePhase();
  Progress AwaitTurn();
  Progress Compare();
  Progress CompareTables();
  Progress Begin();
  void EndComparing();
  void AbandonParts();

  std::shared_ptr<Group> group_;
  Collective collective_;
  Phase phase_ = Phase::kStarted;
  uint64_t place_ = 0;  // on the lane of the calls
  std::optional<Exchange> exchange_, tables_;
  std::optional<CallRecords> records_;
  std::optional<Mover> mover_;
};

/// A message, on the communicator that connects its two ranks.
class HierarchicalMessage : public Operation {
 public:
  HierarchicalMessage(
      const std::shared_ptr<Group>& group, const Collective& collective, uint64_t sequence);

  Progress Advance() override;
  std::vector<int> Missing() const override;
  void GiveUp() override { work_.Abandon(); }

 private:
  std::shared_ptr<Group> group_;
  Collective collective_;
  bool started_ = false;
  Work work_;
};

}  // namespace dtrun::ops::hierarchical

#endif  // DTRUN_OPS_HIERARCHICAL_HIERARCHICAL_OPERATION_H_
