#ifndef DTRUN_OPS_COMMUNICATOR_COMMUNICATOR_BASE_H_
#define DTRUN_OPS_COMMUNICATOR_COMMUNICATOR_BASE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dtrun/types.h"
#include "ops/bootstrap/bootstrap.h"
#include "ops/collective/collective.h"
#include "ops/communicator/device_group.h"
#include "ops/communicator/share_update.h"
#include "ops/engine/progress_engine.h"

namespace dtrun::ops {

/// As what f32 gradients cross from host to host.
enum class WireDType : uint8_t { kNone, kF16, kBF16 };

/// The way that data takes between hosts, where there is a choice.
struct Route {
  WireDType wire = WireDType::kNone;
  /// What goes up, across and down in one piece: much against the latency of its steps, little
  /// against the whole.
  uint64_t chunk_bytes = 2 << 20;
  /// Reductions of all ranks go straight between all of them, as if each were a host of its own: in
  /// fewer steps, but over the wire as often as there are ranks. Nothing is compressed then.
  bool flat = false;

  bool operator==(const Route&) const = default;
};

/// Memory that collectives can reach without a copy; freed with the object, on this rank alone.
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

/// Where the buffers of all ranks lie in this process, for operations that are not the
/// communicator's own.
class ReachedBuffers {
 public:
  virtual ~ReachedBuffers() = default;
  /// All ranks can reach all buffers that have elements; the same on all of them.
  virtual bool all() const = 0;
  /// Of rank `rank`; only where that is so, and as long as this object.
  virtual char* input(int rank) const = 0;
  virtual char* output(int rank) const = 0;
};

/// A fixed set of ranks that exchange data. Collectives are started by every rank, in the same
/// order; what they do stands in <dtrun/communicator.h>. Messages between two ranks match in the
/// order in which each side starts them; they and collectives do not wait for each other. Not
/// thread-safe: one thread at a time per Communicator; `Duplicate()` gives another one. After
/// kPeerLost or kTimeout it is unusable; destroy it. Started operations may outlive it.
class Communicator {
 public:
  explicit Communicator(Members members)
      : members_(std::make_shared<const Members>(std::move(members))) {}
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual const char* backend() const = 0;
  const Members& members() const { return *members_; }

  /// Checks the arguments (throws Error kInvalidArgument or kUnavailable before anything is sent)
  /// and starts the operation. One whose buffers lie on a GPU is enqueued into their stream, and
  /// the Work is done at once: see DeviceGroup. A barrier is one of GPUs when its input names a
  /// device.
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

  /// Reduces `input` over all ranks and updates `output`, which is the same on all of them, from
  /// it, each rank its own share: `update` is called for the pieces of this rank's share, on this
  /// thread, and changes what it has to in `output`, which then goes to the other ranks. Returns
  /// when every share has come. The shares lie in rank order and cover the input, whose values are
  /// unspecified afterwards. One pass over memory where `fuses_updates()`, and both buffers lie in
  /// memory from Allocate; otherwise a reduce_scatter, the update and an all_gather, which give the
  /// same bits.
  void ReduceUpdateGather(
      Buffer input, Buffer output, ReduceOp op, Scale scale, Counts shares,
      const ShareUpdate& update);
  /// The same without the last part: what `update` changes stays with this rank, or lies in memory
  /// that all ranks share. Returns when all ranks have updated.
  void ReduceUpdate(
      Buffer input, ReduceOp op, Scale scale, Counts shares, const ShareUpdate& update);
  virtual bool fuses_updates() const { return false; }

  /// A collective that moves no data: when `work` is done, all ranks have called it with as many
  /// elements of one type and the same op, and `buffers` has been filled in. What they agree to do
  /// with the buffers then, and how they know that all have done it, is theirs. Only where ranks
  /// may reach each other's memory. Checks no argument.
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

  /// Whether another rank may have started the collective that this rank would start next, as far
  /// as can be told here; under the engine's lock. Where it rings, the first peer to do so rings
  /// this rank's doorbell; elsewhere somebody has to ask again and again. Who has nothing to bring
  /// by himself takes part when others ask for it.
  virtual bool MayBeAwaited() { return true; }
  virtual bool RingsWhenAwaited() const { return false; }

  /// Tells all ranks, without waiting for them, that this rank starts nothing more here or on any
  /// communicator made from this one; and the ranks that have told so, as far as is known here.
  /// Under the engine's lock.
  virtual void Leave() {}
  virtual std::vector<int> Left() { return {}; }

  /// How data crosses between hosts; none where there is no choice.
  virtual std::optional<Route> route() const { return std::nullopt; }
  /// From the next operation on; all ranks change it between the same two. Waits for what is under
  /// way. Only where there is a choice.
  virtual void SetRoute(const Route& /*route*/) {}

  /// Collective: zeroed, page-aligned memory, reduced in place without a copy where the backend
  /// can.
  virtual std::unique_ptr<Memory> Allocate(uint64_t bytes) = 0;

  /// Collective: zeroed, page-aligned memory of which all ranks have the same. Error kUnavailable,
  /// on all ranks, where they do not share a host.
  virtual std::unique_ptr<Memory> AllocateShared(uint64_t bytes);

  /// Who makes groups for buffers on GPUs, here and in communicators made from this one from now
  /// on. Without one such buffers are refused.
  void UseDevices(DeviceGroupFactory factory) { make_device_group_ = std::move(factory); }
  /// The group of this communicator, each rank's GPU being that which it names first. Collective
  /// when there is none yet. Throws Error kUnavailable, and kInvalidArgument for another GPU.
  DeviceGroup& device_group(int device);
  /// Collective: as DeviceGroup::Allocate.
  std::unique_ptr<Memory> AllocateOnDevice(int device, uint64_t bytes);
  /// As DeviceGroup::Check; does nothing where nothing lies on a GPU.
  void CheckDevice();

  /// What advances its operations and knows their deadlines; null where nothing has to be waited
  /// for.
  virtual Engine* engine() { return nullptr; }

  /// Collective: the same ranks, with operations of its own.
  virtual std::unique_ptr<Communicator> Duplicate();
  /// Collective: one communicator for the ranks of each colour, ordered by key, then by rank here;
  /// null for a rank whose colour is negative.
  std::unique_ptr<Communicator> Split(int colour, int key);
  /// Collective, also for the ranks that are not listed: one for these ranks, in the order of the
  /// list, which is the same everywhere; null for the others.
  std::unique_ptr<Communicator> Subset(const std::vector<int>& ranks);

  /// Collective over the ranks of `bootstrap`, all of which belong to this communicator:
  /// `ranks` names them, as ranks here. What Duplicate, Split and Subset are made of.
  virtual std::unique_ptr<Communicator> Create(
      Bootstrap& bootstrap, const std::vector<int>& ranks, Members members) = 0;

 protected:
  /// `collective` has been checked.
  virtual Work StartChecked(Collective collective) = 0;
  /// Of a checked reduce_update or reduce_update_gather, in one pass. False, on all ranks alike,
  /// when these buffers do not allow it: then nothing has happened.
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

/// Collective: the bytes of every rank in rank order; lengths may differ.
std::vector<std::string> AllGatherBytes(Communicator& communicator, const std::string& bytes);

/// Collective: the bytes of rank `root` on every rank; `data` and `bytes` of others are ignored.
std::unique_ptr<Memory> BroadcastBytes(
    Communicator& communicator, const void* data, uint64_t bytes, int root);

/// Zeroed, page-aligned memory of this process alone.
std::unique_ptr<Memory> AllocatePrivate(uint64_t bytes);

/// The process keeps the memory until it ends: peers may write there for ever. Any thread.
void Keep(std::unique_ptr<Memory> memory);

}  // namespace dtrun::ops

#endif  // DTRUN_OPS_COMMUNICATOR_COMMUNICATOR_BASE_H_
