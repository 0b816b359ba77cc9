#ifndef DTRUN_OPS_WIRE_WIRE_OPERATION_H_
#define DTRUN_OPS_WIRE_WIRE_OPERATION_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ops/communicator/communicator_base.h"
#include "ops/engine/progress_engine.h"
#include "ops/wire/wire_group.h"
#include "ops/wire/wire_transfer.h"

namespace dtrun::ops::wire {

/// Tells all ranks of the communicator, once, that it cannot be used any more, and why. `outbox`
/// keeps the messages.
void TellLoss(Group& group, const std::shared_ptr<Outbox>& outbox, const LossNotice& notice);

/// One operation on one rank. See wire_operation.cc for the algorithm.
class WireOperation : public Operation {
 public:
  WireOperation(
      std::shared_ptr<Group> group, Collective collective, Channel channel, uint64_t sequence);
  ~WireOperation() override;

  Progress Advance() final;
  bool NeedsPolling() const final { return group_->endpoint->wire->needs_polling(); }
  std::vector<int> Awaited() const final;
  void TimeIsUp(const std::vector<int>& late) final { group_->NoteLate(late); }

 protected:
  /// Sends this rank's header to the ranks that need it, and finds the place where their headers
  /// arrive.
  virtual void Post() = 0;
  virtual bool AllCame() const = 0;
  /// Sends on headers that have come.
  virtual void Spread() {}
  /// True if the header of `rank`, a rank of the communicator, is needed and has not come.
  virtual bool Awaits(int rank) const = 0;
  /// Removes the operation's headers from the mailbox. No more of them arrive.
  virtual void Forget() = 0;
  /// Throws Error kMismatch if the calls disagree. Otherwise returns the transfer of the data, or
  /// null if there is no more data to move.
  virtual std::shared_ptr<Transfer> Agree() = 0;

  Group& group() const { return *group_; }
  const std::shared_ptr<Group>& shared_group() const { return group_; }
  const Collective& collective() const { return collective_; }
  Mailbox& mailbox() const { return group_->endpoint->mailroom->Box(group_->context); }
  uint64_t element() const { return SizeOf(static_cast<DType>(call().dtype)); }
  /// "the ranks disagree on collective #12 of world/1: "
  std::string Disagree() const;

  /// Reserves the tags on which this rank receives data outside headers.
  void TakeTags() { tags_ = group_->endpoint->tags.Take(); }
  /// This rank's header, with room for `data_bytes` of data.
  Header OwnHeader(bool has_data, uint64_t data_bytes) const;
  void SendHeader(const Header& header, int peer);
  /// This rank's call, valid as long as the operation.
  Called OwnCalled() const;

 private:
  void CheckLost();
  [[noreturn]] void Lose(const LossNotice& notice);
  void Finish();

  std::shared_ptr<Group> group_;
  Collective collective_;
  Channel channel_;
  int tags_ = 0;
  bool posted_ = false, agreed_ = false;
  uint64_t polled_ = 0;
  std::shared_ptr<Outbox> outbox_ = std::make_shared<Outbox>();
  std::shared_ptr<Transfer> transfer_;
};

/// An operation of all ranks of a communicator.
class CollectiveOperation : public WireOperation {
 public:
  CollectiveOperation(std::shared_ptr<Group> group, Collective collective);
  std::vector<int> Missing() const override;

 private:
  void Post() override;
  bool AllCame() const override;
  bool Awaits(int rank) const override;
  void Forget() override;
  std::shared_ptr<Transfer> Agree() override;
  void Spread() override;
  void SendBundle(const std::vector<Header>& headers, int peer);

  std::shared_ptr<Arrivals> arrivals_;
  bool relays_ = false, told_ = false;
  int have_ = 1, distance_ = 1;
  std::chrono::steady_clock::time_point posted_at_ = {};
};

/// One side of a message between two ranks.
class MessageOperation : public WireOperation {
 public:
  MessageOperation(std::shared_ptr<Group> group, Collective collective);
  std::vector<int> Missing() const override;

 private:
  void Post() override;
  bool AllCame() const override;
  bool Awaits(int rank) const override;
  void Forget() override;
  std::shared_ptr<Transfer> Agree() override;

  bool sends() const { return collective().kind == CollectiveKind::kSend; }
  std::pair<int, uint64_t> key() const { return {collective().root, sequence()}; }
  // The headers among which the header of the other side arrives.
  std::map<std::pair<int, uint64_t>, Header>& headers() const;
  static uint64_t NextSequence(Group& group, const Collective& collective);

  Header own_;
};

}  // namespace dtrun::ops::wire

#endif
