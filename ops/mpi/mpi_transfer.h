#ifndef DTRUN_OPS_MPI_MPI_TRANSFER_H_
#define DTRUN_OPS_MPI_MPI_TRANSFER_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "ops/collective/collective.h"
#include "ops/mpi/mpi_group.h"

namespace dtrun::ops::mpi {

/// One operation that all ranks have agreed on, as those see it who move its data.
struct Agreed {
  std::shared_ptr<Group> group;
  Collective collective;
  std::vector<Header> headers;  ///< by rank, the own one too; of a message, of the two alone
  std::vector<Called> called;   ///< beside headers; not of a message

  int rank() const { return group->rank; }
  int size() const { return group->size; }
  const Call& own_call() const { return headers[static_cast<size_t>(rank())].envelope().call; }
  uint64_t element() const { return SizeOf(static_cast<DType>(own_call().dtype)); }
  Calls calls() const { return {called.data(), size()}; }
  /// What `rank` has brought in its header; null when it has brought nothing.
  const char* DataFrom(int rank) const;
};

/// Whether so many bytes travel in the header.
inline bool FitsHeader(uint64_t bytes, int size) { return bytes <= Mailroom::DataLimit(size); }

/// The largest message of a transfer: such that most transports send it at once, without asking the
/// receiver first (of TCP, Open MPI counts 64 KiB with the envelope as small). On a busy wire the
/// question and the answer would wait their turn behind the data of both directions.
inline constexpr uint64_t kMessageBytes = 60 << 10;
/// What a rank may have under way, in or out: several times what a wire carries while a rank is not
/// running.
inline constexpr uint64_t kWindowBytes = 4 << 20;

/// How the data moves that is too large for the headers: a state machine that is told what has
/// ended. Only synchronous sends are used: of a peer that is late no more waits in MPI than a
/// window, and nothing is left for MPI to do when an operation is over.
class Transfer : public Listener, public std::enable_shared_from_this<Transfer> {
 public:
  explicit Transfer(Agreed agreed) : agreed_(std::move(agreed)) {}

  virtual void Start() = 0;
  /// Goes on as far as it can; true if something had ended.
  bool Advance();
  virtual bool Done() const = 0;
  /// Gives back what it has borrowed. After Done() only.
  virtual void Release() {}

  void Ended(uint64_t key) final { ended_.push_back(key); }

 protected:
  virtual void Handle(uint64_t key) = 0;
  virtual void HandledAll() {}

  const Agreed& agreed() const { return agreed_; }
  int rank() const { return agreed_.group->rank; }
  int size() const { return agreed_.group->size; }
  Scratch& scratch() { return agreed_.group->endpoint->scratch; }
  /// The rank `distance` places behind this one: who sends in this order hits everybody once.
  int After(int distance) const { return (rank() + distance) % size(); }
  int Before(int distance) const { return (rank() + size() - distance) % size(); }

  /// `tag`: which of the receiver's tags.
  void Send(int peer, int tag, const char* data, uint64_t bytes, uint64_t key);
  void Receive(int peer, int tag, char* data, uint64_t bytes, uint64_t key);

 private:
  Agreed agreed_;
  std::vector<uint64_t> ended_, handling_;
};

/// A transfer in pieces, which start and retire in order, several under way at once. A piece takes
/// two steps: data goes to the owners of its slices, then the owners hand their slices on.
class PiecesTransfer : public Transfer {
 public:
  using Transfer::Transfer;

  void Start() override { HandledAll(); }
  bool Done() const override { return retired_ == pieces_; }

 protected:
  /// What may be said of a message.
  enum class What : uint64_t { kToOwner, kAtOwner, kResultOut, kResultIn };
  struct Piece {
    uint64_t index = 0;
    int arriving = 0;  ///< messages to this owner that have not come
    int open = 0;      ///< all messages
  };

  void set_pieces(uint64_t pieces, uint64_t window) {
    pieces_ = pieces;
    window_ = window;
    ring_.resize(window);
  }
  uint64_t window() const { return window_; }
  uint64_t SlotOf(const Piece& piece) const { return piece.index % window_; }

  virtual void StartPiece(Piece& piece) = 0;
  virtual void HandlePiece(Piece& piece, What what, int peer) = 0;

  /// An empty slice is no message.
  void SendSlice(Piece& piece, What what, int peer, const char* data, uint64_t bytes);
  void ReceiveSlice(Piece& piece, What what, int peer, char* data, uint64_t bytes);

 private:
  void Handle(uint64_t key) override;
  void HandledAll() override;

  uint64_t pieces_ = 0, window_ = 1;
  uint64_t started_ = 0, retired_ = 0;
  std::vector<Piece> ring_;
};

/// Each of these first finishes what lies in the headers, and returns null if that was all.
/// all_reduce, reduce_scatter, reduce:
std::shared_ptr<Transfer> Combine(Agreed agreed);
/// A broadcast that is too large for the headers:
std::shared_ptr<Transfer> Broadcast(Agreed agreed);
/// What else is done by all:
std::shared_ptr<Transfer> Move(Agreed agreed);
/// send, receive:
std::shared_ptr<Transfer> MoveMessage(Agreed agreed);

}  // namespace dtrun::ops::mpi

#endif
