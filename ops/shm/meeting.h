#ifndef DTRUN_OPS_SHM_MEETING_H_
#define DTRUN_OPS_SHM_MEETING_H_

#include <memory>
#include <vector>

#include "ops/collective.h"
#include "ops/engine.h"
#include "ops/reduce/reduce.h"
#include "ops/shm/shm_group.h"

namespace dtrun::ops::shm {

/// One collective on one rank: this rank's call and, once all have arrived, those of the others
/// and where their buffers can be reached.
class Meeting {
 public:
  Meeting(std::shared_ptr<ShmGroup> group, Collective collective, uint64_t sequence);
  Meeting(const Meeting&) = delete;
  Meeting& operator=(const Meeting&) = delete;

  ShmGroup& group() const { return *group_; }
  const Collective& collective() const { return collective_; }
  uint64_t sequence() const { return sequence_; }
  CollectiveKind kind() const { return collective_.kind; }
  int rank() const { return group_->rank(); }
  int size() const { return group_->size(); }
  uint64_t element() const { return element_; }
  const Arithmetic& arithmetic() const { return arithmetic_; }

  /// Writes this rank's call (and its data, when it is small) where the peers see it.
  void Post();
  /// All ranks have posted.
  bool AllHere();
  std::vector<int> Missing() const;

  /// The calls of all ranks. Only once all are here.
  const Calls& calls() const { return calls_; }
  const Posting& posting(int rank) const {
    return group_->layout().arrival(sequence_, rank).posting;
  }
  /// Every rank that brings data brings so little that it came with the call.
  bool IsInline() const;
  const char* inline_data(int rank) const { return group_->layout().inline_data(sequence_, rank); }

  /// Every input that is used (output that is filled) can be reached by all ranks.
  bool InputsMapped() const;
  bool OutputsMapped() const;
  bool OutputMapped(int rank) const;
  /// Looks up where the buffers of the peers are mapped here.
  void Reach();
  /// Null where a peer's buffer is private. This rank's own can always be reached.
  char* input(int rank) const { return inputs_[static_cast<size_t>(rank)]; }
  char* output(int rank) const { return outputs_[static_cast<size_t>(rank)]; }

 private:
  uint64_t Bytes(const Buffer& buffer) const { return buffer.count * element_; }
  char* Reach(int rank, const Place& place);

  std::shared_ptr<ShmGroup> group_;
  Collective collective_;
  uint64_t sequence_;
  uint64_t element_;  // bytes
  Arithmetic arithmetic_;
  int arrived_ = 0;  // ranks [0, arrived_) have been seen
  Call call_;
  std::vector<Called> called_;
  Calls calls_;
  std::vector<std::shared_ptr<const Region>> regions_;  // kept mapped until the end
  std::vector<char*> inputs_, outputs_;
};

inline uint64_t DivideUp(uint64_t a, uint64_t b) { return (a + b - 1) / b; }

/// How the data of a collective moves once all ranks are here and agree.
class Transfer {
 public:
  virtual ~Transfer() = default;
  virtual Operation::Progress Advance() = 0;
};

/// Through memory that ranks reach directly; null when this collective's buffers do not allow it.
std::unique_ptr<Transfer> MakeDirectTransfer(Meeting& meeting);
/// Through the ranks' staging areas.
std::unique_ptr<Transfer> MakeStagedTransfer(Meeting& meeting);

}  // namespace dtrun::ops::shm

#endif
