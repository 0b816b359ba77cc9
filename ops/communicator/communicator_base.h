#ifndef DTRUN_OPS_COMMUNICATOR_COMMUNICATOR_BASE_H_
#define DTRUN_OPS_COMMUNICATOR_COMMUNICATOR_BASE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "dtrun/error.h"
#include "dtrun/types.h"
#include "ops/bootstrap/bootstrap.h"
#include "ops/collective/collective.h"
#include "ops/communicator/device_group.h"
#include "ops/engine/progress_engine.h"
#include "ops/reduce/reduce.h"

namespace dtrun::ops {

/// The type in which f32 gradients cross between hosts. kNone: f32.
enum class WireDType : uint8_t { kNone, kF16, kBF16 };

/// How data travels between hosts, for communicators that have a choice.
struct Route {
  WireDType wire = WireDType::kNone;
  /// Bytes of a chunk, which goes up, across and down as one piece. A chunk is large beside the
  /// latency of its steps, and small beside the whole buffer.
  uint64_t chunk_bytes = 2 << 20;
  /// If true, reductions go straight between all ranks, as if each rank were a host. That takes
  /// fewer steps, but the data crosses the wire once per rank. Nothing is compressed on a flat
  /// route.
  bool flat = false;

  bool operator==(const Route&) const = default;
};

/// Memory that collectives can reach without a copy. The destructor frees it on this rank only.
class Memory {
 public:
  Memory(void* data, uint64_t bytes) : data_(data), bytes_(bytes) {}
  virtual ~Memory() = default;
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  void* data() const { return data_; }
  uint64_t bytes() const { return bytes_; }

 private:
  void* data_;
  uint64_t bytes_;
};

/// The addresses of all ranks' buffers in this process, for operations outside the communicator.
class ReachedBuffers {
 public:
  virtual ~ReachedBuffers() = default;
  /// True if all ranks can reach all buffers that have elements. The same on all ranks.
  virtual bool all() const = 0;
  /// The buffers of rank `rank`. Valid only if all() is true, and only while this object lives.
  virtual char* input(int rank) const = 0;
  virtual char* output(int rank) const = 0;
};

/// Elements of a rank's share that are not reduced yet: the argument of a fused update. All
/// pointers point to the first element of the share.
struct UnreducedShare {
  const void* const* inputs;  ///< of all ranks, in rank order
  int input_count;
  Arithmetic arithmetic;  ///< its stores suit the copies
  void* const* copies;    ///< these elements in the other ranks' outputs; become equal to ours
  int copy_count;
};

/// The functions that update a rank's share.
struct ShareUpdate {
  /// Updates elements [first, first + count) of the whole buffer. `reduced` holds their reduction;
  /// its memory is reused after the call. The pieces come in ascending order. A Piece does not
  /// throw and does not call the communicator.
  using Piece = std::function<void(uint64_t first, uint64_t count, const void* reduced)>;
  /// Updates the whole share in one call, if this rank reaches all inputs and outputs. It reduces
  /// the inputs and also stores the copies. Its streaming stores are not fenced.
  using Fused = std::function<void(uint64_t first, uint64_t count, const UnreducedShare& share)>;

  ShareUpdate(Piece of_piece, Fused of_share)
      : piece(std::move(of_piece)), fused(std::move(of_share)) {}
  /// An update without a fused function.
  template <typename Callable>
  requires std::is_invocable_v<Callable&, uint64_t, uint64_t, const void*> ShareUpdate(
      Callable of_piece)  // NOLINT: a function of pieces is an update
      : piece(std::move(of_piece)) {}

  Piece piece;
  Fused fused;  ///< may be empty
};

/// The size of the pieces in which a share is updated. All data of a piece, including the state,
/// stays in the second-level cache (1 MiB and more) from its reduction to its last store. Smaller
/// pieces are slower, because every memory stream restarts at each piece.
inline constexpr uint64_t kPieceBytes = 64 << 10;

/// Calls `update` for the pieces of `share` in `reduced`. The values are multiplied by `factor`.
void UpdateInPieces(Buffer reduced, Range share, double factor, const ShareUpdate::Piece& update);

/// The share of rank `rank`, if the shares of all ranks lie in rank order.
Range ShareOf(const Counts& shares, int rank);

/// A fixed set of ranks that exchange data. Every rank starts the collectives in the same order.
/// <dtrun/communicator.h> says what each collective does. Messages between two ranks match in the
/// order in which each side starts them. Messages and collectives do not wait for each other.
///
/// Not thread-safe: one thread at a time per Communicator; `Duplicate()` gives another one. After
/// kPeerLost or kTimeout the communicator is unusable; destroy it. Started operations may outlive
/// it.
class Communicator {
 public:
  explicit Communicator(Members members)
      : members_(std::make_shared<const Members>(std::move(members))) {}
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual const char* backend() const = 0;
  const Members& members() const { return *members_; }

  /// Checks the arguments and starts the operation. Throws Error kInvalidArgument or kUnavailable
  /// before anything is sent. If the buffers lie on a GPU, the operation is enqueued into their
  /// stream and the Work is done at once: see DeviceGroup. A barrier runs on GPUs if its input
  /// names a device.
  Work Start(Collective collective);

  Work StartAllReduce(Buffer input, Buffer output, ReduceOp op, Scale scale = {});
  Work StartAllReduce(Buffer buffer, ReduceOp op, Scale scale = {}) {
    return StartAllReduce(buffer, buffer, op, scale);
  }
  Work StartReduceScatter(
      Buffer input, Buffer output, ReduceOp op, Scale scale = {}, Counts shares = {});
  Work StartReduce(Buffer input, Buffer output, int root, ReduceOp op, Scale scale = {});
  Work StartBroadcast(Buffer buffer, int root);
  Work StartAllGather(Buffer input, Buffer output, Counts receive_counts = {});
  Work StartAllToAll(
      Buffer input, Buffer output, Counts send_counts = {}, Counts receive_counts = {});
  Work StartGather(Buffer input, Buffer output, int root, Counts receive_counts = {});
  Work StartScatter(Buffer input, Buffer output, int root, Counts send_counts = {});
  Work StartBarrier();
  Work StartSend(Buffer buffer, int peer);
  Work StartReceive(Buffer buffer, int peer);

  /// Reduces `input` over all ranks and updates `output`, which is the same on all ranks. Each rank
  /// updates its own share: `update` is called on this thread for the pieces of the share, and
  /// changes `output`. The changed share then goes to the other ranks. Returns when every share has
  /// arrived.
  ///
  /// The shares lie in rank order and cover the input. Afterwards, the values of the input are
  /// unspecified. If `fuses_updates()` and both buffers lie in memory from Allocate, the update
  /// takes one pass over memory. Otherwise it is a reduce_scatter, the update and an all_gather.
  /// Both ways give the same bits.
  void ReduceUpdateGather(
      Buffer input, Buffer output, ReduceOp op, Scale scale, Counts shares,
      const ShareUpdate& update);
  /// The same without sending the changes: they stay on this rank, or lie in memory that all ranks
  /// share. Returns when all ranks have updated.
  void ReduceUpdate(
      Buffer input, ReduceOp op, Scale scale, Counts shares, const ShareUpdate& update);
  virtual bool fuses_updates() const { return false; }

  /// A collective that moves no data. When `work` is done, all ranks have called it with the same
  /// number of elements, type and op, and `buffers` is filled in. The callers agree among
  /// themselves how they use the buffers and how they learn that all ranks are done. Only if
  /// `reaches_peers()`. Checks no argument.
  struct Reach {
    Work work;
    std::shared_ptr<const ReachedBuffers> buffers;
  };
  virtual bool reaches_peers() const { return false; }
  virtual Reach StartReach(Buffer /*input*/, Buffer /*output*/, ReduceOp /*op*/) { return {}; }

  void AllReduce(Buffer buffer, ReduceOp op) { StartAllReduce(buffer, op).Wait(); }
  void Broadcast(Buffer buffer, int root) { StartBroadcast(buffer, root).Wait(); }
  void AllGather(Buffer input, Buffer output) { StartAllGather(input, output).Wait(); }
  void Barrier() { StartBarrier().Wait(); }

  /// True if another rank may have started the collective that this rank would start next, as far
  /// as this rank can tell. Called under the engine's lock. If `RingsWhenAwaited()`, the first peer
  /// that starts the collective rings this rank's doorbell. Otherwise the caller has to ask
  /// repeatedly. A rank without input uses this to take part when others start a collective.
  virtual bool MayBeAwaited() { return true; }
  virtual bool RingsWhenAwaited() const { return false; }

  /// Leave tells all ranks that this rank starts nothing more on this communicator or on any
  /// communicator made from it. It does not wait for them. Left returns the ranks that have told
  /// so, as far as this rank knows. Both are called under the engine's lock.
  virtual void Leave() {}
  virtual std::vector<int> Left() { return {}; }

  /// How data crosses between hosts. nullopt if there is no choice.
  virtual std::optional<Route> route() const { return std::nullopt; }
  /// Sets the route from the next operation on. All ranks call it between the same two operations.
  /// Waits for the operations under way. Only for communicators that have a route.
  virtual void SetRoute(const Route& /*route*/) {}

  /// Collective: zeroed, page-aligned memory. If the backend can, collectives reduce it in place
  /// without a copy.
  virtual std::unique_ptr<Memory> Allocate(uint64_t bytes) = 0;

  /// Collective: zeroed, page-aligned memory that all ranks share. Throws Error kUnavailable, on
  /// all ranks, if the ranks do not share a host.
  virtual std::unique_ptr<Memory> AllocateShared(uint64_t bytes);

  /// Sets the factory of groups for GPU buffers, for this communicator and for communicators made
  /// from it from now on. Without a factory, GPU buffers are refused.
  void UseDevices(DeviceGroupFactory factory) { make_device_group_ = std::move(factory); }
  /// The GPU group of this communicator. The first call creates the group, which is collective, and
  /// decides this rank's GPU. Throws Error kUnavailable if no backend reaches the GPUs, and
  /// kInvalidArgument for another GPU than before.
  DeviceGroup& device_group(int device);
  /// Collective: DeviceGroup::Allocate of this communicator's group.
  std::unique_ptr<Memory> AllocateOnDevice(int device, uint64_t bytes);
  /// Calls DeviceGroup::Check if this communicator has a GPU group.
  void CheckDevice();

  /// The engine that advances the operations and knows their deadlines. Null if no operation waits.
  virtual Engine* engine() { return nullptr; }

  /// Collective: a communicator of the same ranks with its own sequence of operations.
  virtual std::unique_ptr<Communicator> Duplicate();
  /// Collective: one communicator for the ranks of each colour, ordered by key, then by rank here.
  /// Null on a rank whose colour is negative.
  std::unique_ptr<Communicator> Split(int colour, int key);
  /// Collective over all ranks, listed or not: a communicator of the listed ranks, in the order of
  /// the list. All ranks pass the same list. Null on the other ranks.
  std::unique_ptr<Communicator> Subset(const std::vector<int>& ranks);

  /// TellLoss tells all ranks that an operation has failed because a rank is lost, and why. Loss
  /// returns what another rank has told, or which rank has ended without a farewell; nullopt:
  /// nothing. Both are called under the engine's lock. For operations that are made of others: some
  /// of their ranks may not need the lost rank, but wait for those that do.
  virtual void TellLoss(const Error& /*cause*/) {}
  virtual std::optional<Error> Loss() { return std::nullopt; }
  /// Notes the ranks for which an operation has waited too long. Called under the engine's lock.
  virtual void NoteLate(const std::vector<int>& /*ranks*/) {}

  /// After kPeerLost or kTimeout: a communicator of the ranks that are left, in rank order.
  /// Collective over these ranks. If another rank is lost meanwhile, it is left out, too. After
  /// kTimeout, a rank for which an operation has waited is left out if it does not come within half
  /// a second after the other ranks. Throws Error kUnavailable if the backend ends with the first
  /// lost rank, kPeerLost if the other ranks go on without this rank, and kTimeout.
  std::unique_ptr<Communicator> Reform();

  /// Creates a communicator of the ranks of `bootstrap`, and is collective over them. `ranks` names
  /// them as ranks of this communicator. Duplicate, Split and Subset call it.
  virtual std::unique_ptr<Communicator> Create(
      Bootstrap& bootstrap, const std::vector<int>& ranks, Members members) = 0;

 protected:
  /// Reform, without devices. Throws kUnavailable.
  virtual std::unique_ptr<Communicator> ReformLeft();
  /// Starts the operation. The arguments of `collective` have been checked.
  virtual Work StartChecked(Collective collective) = 0;
  /// Does a checked reduce_update or reduce_update_gather in one pass. Returns false, on all ranks,
  /// if the buffers do not allow one pass. Then no rank has changed anything.
  virtual bool UpdateInOnePass(const Collective&, const ShareUpdate&) { return false; }
  const std::shared_ptr<const Members>& shared_members() const { return members_; }

 private:
  void Update(const Collective& collective, const ShareUpdate& update);
  std::unique_ptr<Communicator> CreateFor(const std::vector<int>& ranks, const std::string& suffix);

  std::shared_ptr<const Members> members_;
  DeviceGroupFactory make_device_group_;
  std::unique_ptr<DeviceGroup> device_group_;
  int children_ = 0;  // communicators made from this one
};

/// Collective: gathers the bytes of every rank, in rank order. Lengths may differ.
std::vector<std::string> AllGatherBytes(Communicator& communicator, const std::string& bytes);

/// Collective: brings the bytes of rank `root` to every rank. Other ranks' `data` and `bytes` are
/// ignored.
std::unique_ptr<Memory> BroadcastBytes(
    Communicator& communicator, const void* data, uint64_t bytes, int root);

/// Zeroed, page-aligned memory that belongs to this process alone.
std::unique_ptr<Memory> AllocatePrivate(uint64_t bytes);

/// Keeps the memory until the process ends, because peers may still write to it. Any thread.
void Keep(std::unique_ptr<Memory> memory);

}  // namespace dtrun::ops

#endif  // DTRUN_OPS_COMMUNICATOR_COMMUNICATOR_BASE_H_
