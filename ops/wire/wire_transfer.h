#ifndef DTRUN_OPS_WIRE_WIRE_TRANSFER_H_
#define DTRUN_OPS_WIRE_WIRE_TRANSFER_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "ops/collective/collective.h"
#include "ops/wire/wire_group.h"

namespace dtrun::ops::wire {

/// An operation on which all ranks have agreed, for its transfer.
struct Agreed {
  std::shared_ptr<Group> group;
  Collective collective;
  std::vector<Header> headers;  ///< by rank, this rank's too; for a message, only of the two ranks
  std::vector<Called> called;   ///< parallel to headers; empty for a message

  int rank() const { return group->rank; }
  int size() const { return group->size; }
  uint64_t message_bytes() const { return group->endpoint->wire->message_bytes(); }
  const Call& own_call() const { return headers[static_cast<size_t>(rank())].envelope().call; }
  uint64_t element() const { return SizeOf(static_cast<DType>(own_call().dtype)); }
  Calls calls() const { return {called.data(), size()}; }
  /// Whether the headers of this collective bring this many bytes of a rank to another one.
  bool InHeader(uint64_t bytes) const { return group->InHeader(collective.kind, bytes); }
  /// The data in the header of `rank`; null if the header has no data for this rank.
  const char* DataFrom(int rank) const;
};

/// The most bytes that a rank has under way, in or out: several times the amount that a wire
/// carries while a rank is not running.
inline constexpr uint64_t kWindowBytes = 4 << 20;

/// Moves the data that is too large for the headers: a state machine that is told which messages
/// have ended. It uses only synchronous sends. So at most one window of data waits for a
/// late peer, and the wire has no work left when an operation is over.
class Transfer : public Listener, public std::enable_shared_from_this<Transfer> {
 public:
  explicit Transfer(Agreed agreed) : agreed_(std::move(agreed)) {}

  virtual void Start() = 0;
  /// Handles the messages that have ended. Returns true if there were any.
  bool Advance();
  virtual bool Done() const = 0;
  /// Gives borrowed memory back. Only after Done().
  virtual void Release() {}
  /// The ranks whose data or answer this rank needs next.
  virtual std::vector<int> Awaited() const = 0;

  void Ended(uint64_t key) final { ended_.push_back(key); }

 protected:
  virtual void Handle(uint64_t key) = 0;
  virtual void HandledAll() {}

  const Agreed& agreed() const { return agreed_; }
  int rank() const { return agreed_.group->rank; }
  int size() const { return agreed_.group->size; }
  Scratch& scratch() { return agreed_.group->endpoint->scratch; }
  /// The rank `distance` places after this rank. If all ranks send in this order, no rank is the
  /// target of several ranks in the same step.
  int After(int distance) const { return (rank() + distance) % size(); }
  int Before(int distance) const { return (rank() + size() - distance) % size(); }

  /// `tag`: the index of one of the receiver's tags.
  void Send(int peer, int tag, const char* data, uint64_t bytes, uint64_t key);
  void Receive(int peer, int tag, char* data, uint64_t bytes, uint64_t key);

 private:
  Agreed agreed_;
  std::vector<uint64_t> ended_, handling_;
};

/// A transfer in pieces. Pieces start and retire in order, and several are under way at once. A
/// piece takes two steps: data goes to the owners of its slices, then the owners send their slices
/// on.
class PiecesTransfer : public Transfer {
 public:
  using Transfer::Transfer;

  void Start() override { HandledAll(); }
  bool Done() const override { return retired_ == pieces_; }
  std::vector<int> Awaited() const override;

 protected:
  /// The role of a message on this rank.
  enum class What : uint64_t { kToOwner, kAtOwner, kResultOut, kResultIn };
  struct Piece {
    uint64_t index = 0;
    int arriving = 0;  ///< messages to this owner that have not come
    int open = 0;      ///< all messages that have not ended
  };

  void set_pieces(uint64_t pieces, uint64_t window) {
    pieces_ = pieces;
    window_ = window;
    ring_.resize(window);
    open_.resize(window * static_cast<uint64_t>(size()) * kWhats);
  }
  uint64_t window() const { return window_; }
  uint64_t SlotOf(const Piece& piece) const { return piece.index % window_; }

  virtual void StartPiece(Piece& piece) = 0;
  virtual void HandlePiece(Piece& piece, What what, int peer) = 0;

  /// An empty slice needs no message.
  void SendSlice(Piece& piece, What what, int peer, const char* data, uint64_t bytes);
  void ReceiveSlice(Piece& piece, What what, int peer, char* data, uint64_t bytes);

 private:
  static constexpr uint64_t kWhats = 4;

  // The number of a message among those of all places of the ring.
  uint64_t KeyOf(const Piece& piece, int peer, What what) const {
    const uint64_t place = SlotOf(piece) * static_cast<uint64_t>(size());
    return (place + static_cast<uint64_t>(peer)) * kWhats + static_cast<uint64_t>(what);
  }
  void Handle(uint64_t key) override;
  void HandledAll() override;

  uint64_t pieces_ = 0, window_ = 1;
  uint64_t started_ = 0, retired_ = 0;
  std::vector<Piece> ring_;
  std::vector<bool> open_;  // messages, by key
};

/// Each of these functions first finishes the data in the headers. It returns null if there is no
/// other data. For all_reduce, reduce_scatter and reduce:
std::shared_ptr<Transfer> Combine(Agreed agreed);
/// For a broadcast that is too large for the headers:
std::shared_ptr<Transfer> Broadcast(Agreed agreed);
/// For all other collectives with data:
std::shared_ptr<Transfer> Move(Agreed agreed);
/// For send and receive:
std::shared_ptr<Transfer> MoveMessage(Agreed agreed);

}  // namespace dtrun::ops::wire

#endif
