#ifndef DTRUN_OPS_WIRE_WIRE_REFORM_H_
#define DTRUN_OPS_WIRE_WIRE_REFORM_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "ops/engine/progress_engine.h"
#include "ops/wire/wire_group.h"

namespace dtrun::ops::wire {

/// The ranks that are left of a communicator.
struct Survivors {
  std::vector<int> ranks;  ///< of the old communicator, in rank order
  uint64_t context = 0;    ///< of the new communicator
};

/// How the ranks that are left of a communicator agree which ranks these are. See wire_reform.cc.
class ReformOperation : public Operation {
 public:
  /// `members` describes the old communicator, but is another object. `survivors` is filled in when
  /// the operation is done.
  ReformOperation(
      std::shared_ptr<Group> group, std::shared_ptr<const Members> members,
      std::shared_ptr<Survivors> survivors);

  Progress Advance() override;
  std::vector<int> Missing() const override;
  bool NeedsPolling() const override { return group_->endpoint->wire->needs_polling(); }

 private:
  Mailbox& box() const { return group_->endpoint->mailroom->Box(group_->context); }
  void Learn();
  void Propose();
  bool LeaveOut(const std::vector<int>& missing);
  bool Compare();
  void Finish(const std::set<int>& lost, uint64_t context, uint64_t attempt);

  std::shared_ptr<Group> group_;
  uint64_t offer_ = 0;  // the new communicator's context, if this rank is its first
  std::shared_ptr<Survivors> survivors_;
  std::set<int> lost_;
  uint64_t attempt_ = 0;
  std::vector<int> asked_;  // the ranks whose proposals this attempt needs
  bool proposed_ = false;
  std::optional<std::chrono::steady_clock::time_point> patient_since_;
  uint64_t polled_ = 0;
  std::shared_ptr<Outbox> outbox_ = std::make_shared<Outbox>();
};

/// Sends the earlier result to the ranks that make another attempt.
void AnswerLateProposals(Endpoint& endpoint);

}  // namespace dtrun::ops::wire

#endif  // DTRUN_OPS_WIRE_WIRE_REFORM_H_
