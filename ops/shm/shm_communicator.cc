#include "ops/shm/shm_communicator.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "ops/engine/progress_engine.h"
#include "ops/reduce/reduce.h"
#include "ops/self/self_communicator.h"
#include "ops/shm/shm_group.h"
#include "ops/shm/shm_layout.h"
#include "ops/shm/shm_operation.h"

namespace dtrun::ops::shm {

/// Does a reduce_update or reduce_update_gather of the group's ranks in one pass, over memory that
/// all ranks map; see Walk below. Collective. Returns false if a buffer of any rank is private;
/// then no rank has changed anything. `barrier` is the communicator's barrier. Throws the errors of
/// a collective.
bool UpdateInOnePass(
    const std::shared_ptr<ShmGroup>& group, Engine& engine, const Collective& collective,
    const ShareUpdate& update, const std::function<void()>& barrier);

}  // namespace dtrun::ops::shm

namespace dtrun::ops {
namespace {

using shm::MeetingOperation;
using shm::Met;
using shm::Region;
using shm::ShmGroup;
using shm::ShmMessage;
using shm::ShmOperation;

class ShmMemory : public Memory {
 public:
  ShmMemory(
      std::shared_ptr<ShmGroup> group, std::shared_ptr<const Region> region, const Segment* block,
      uint64_t bytes)
      : Memory(block == nullptr ? nullptr : block->data(), bytes),
        group_(std::move(group)),
        region_(std::move(region)) {}
  ~ShmMemory() override { group_->RemoveRegion(region_); }

 private:
  std::shared_ptr<ShmGroup> group_;
  std::shared_ptr<const Region> region_;
};

class ShmCommunicator : public Communicator {
 public:
  ShmCommunicator(
      std::unique_ptr<SegmentExchange> exchange, Engine& engine, Members members, CallChecks checks)
      : Communicator(std::move(members)),
        engine_(engine),
        checks_(checks),
        group_(std::make_shared<ShmGroup>(
            std::move(exchange), engine, shared_members(), checks == CallChecks::kOn)) {}

  int rank() const override { return group_->rank(); }
  int size() const override { return group_->size(); }
  const char* backend() const override { return "shm"; }
  Engine* engine() override { return &engine_; }

  bool MayBeAwaited() override { return group_->IsAwaited(); }
  bool RingsWhenAwaited() const override { return true; }
  void Leave() override { group_->Leave(); }
  std::vector<int> Left() override { return group_->Left(); }

  std::unique_ptr<Memory> Allocate(uint64_t bytes) override {
    return AllocateBlock(bytes, rank(), bytes, 0, 1);
  }

  std::unique_ptr<Memory> AllocateShared(uint64_t bytes) override {
    return AllocateBlock(rank() == 0 ? bytes : 0, 0, bytes, rank(), size());
  }

  bool fuses_updates() const override { return true; }

  bool reaches_peers() const override { return true; }
  Reach StartReach(Buffer input, Buffer output, ReduceOp op) override {
    const Collective collective{
        .kind = CollectiveKind::kAllReduce, .input = input, .output = output, .op = op};
    const auto met = std::make_shared<Met>(group_, collective);
    return {
        engine_.Start(std::make_unique<MeetingOperation>(met, CallOf(collective, rank()))), met};
  }

  std::unique_ptr<Communicator> Create(
      Bootstrap& bootstrap, const std::vector<int>&, Members members) override {
    if (bootstrap.size() == 1) return CreateSelfCommunicator(std::move(members));
    return std::make_unique<ShmCommunicator>(
        group_->exchange().ConnectAnother(bootstrap), engine_, std::move(members), checks_);
  }

 protected:
  Work StartChecked(Collective collective) override {
    if (collective.kind == CollectiveKind::kSend || collective.kind == CollectiveKind::kReceive) {
      return engine_.Start(std::make_unique<ShmMessage>(group_, collective));
    }
    return engine_.Start(std::make_unique<ShmOperation>(group_, std::move(collective)));
  }

  bool UpdateInOnePass(const Collective& collective, const ShareUpdate& update) override {
    return shm::UpdateInOnePass(group_, engine_, collective, update, [this] { Barrier(); });
  }

 private:
  // Adds a region with `mine` bytes of this rank. The result is `bytes` of the block of rank
  // `owner`. Part `part` of `parts` of that block is allocated near this rank.
  std::unique_ptr<Memory> AllocateBlock(
      uint64_t mine, int owner, uint64_t bytes, int part, int parts) {
    // While this rank uses the exchange, it advances no operation. So no other rank may still
    // depend on its progress in an earlier operation.
    Barrier();
    std::shared_ptr<const Region> region = group_->AddRegion(mine);
    Segment* block = region->blocks[static_cast<size_t>(owner)].get();
    if (block != nullptr) block->Populate(part, parts);
    return std::make_unique<ShmMemory>(group_, std::move(region), block, bytes);
  }

  Engine& engine_;
  CallChecks checks_;
  std::shared_ptr<ShmGroup> group_;
};

}  // namespace

std::unique_ptr<Communicator> CreateShmCommunicator(
    Bootstrap& bootstrap, Engine& engine, Members members, CallChecks checks) {
  return std::make_unique<ShmCommunicator>(
      bootstrap.ConnectSegmentExchange(bootstrap), engine, std::move(members), checks);
}

}  // namespace dtrun::ops

namespace dtrun::ops::shm {

// An update in one pass:
//
//   1. The ranks meet. Each rank posts its call and the places of its buffers, and compares the
//      calls.
//   2. Each rank walks over its own share in pieces that stay in its cache. It reduces a piece over
//      all inputs into a small scratch buffer. The caller updates this rank's output from that
//      buffer. The rank then stores the piece into the outputs of the others. Large outputs are
//      stored past the cache, because they are not read soon.
//   3. A barrier ends the update.
//
// A fused update does step 2 itself, element by element, so every memory stream runs without a
// break. The walk runs on the calling thread, so the engine can advance other operations.

namespace {

// Updates this rank's share, in pieces or fused.
class Walk {
 public:
  Walk(const Meeting& meeting, const ShareUpdate& update)
      : m_(meeting),
        update_(update),
        share_(ShareOf(meeting.collective().send_counts, meeting.rank())),
        stores_(StoresFor(meeting.collective().output.bytes())),
        inputs_(static_cast<size_t>(meeting.size())),
        scratch_(kPieceBytes + kCacheLine) {}

  void Run() {
    if (update_.fused) {
      if (share_.count > 0) UpdateWhole();
    } else {
      UpdateInPieces();
    }
    FenceStores();
  }

 private:
  void UpdateInPieces() {
    const uint64_t piece = kPieceBytes / m_.element();
    for (uint64_t done = 0; done < share_.count; done += piece) {
      const uint64_t first = share_.begin + done, count = std::min(piece, share_.count - done);
      update_.piece(first, count, ReducePiece(first, count));
      if (m_.kind() == CollectiveKind::kReduceUpdateGather) StorePiece(first, count);
    }
  }

  void UpdateWhole() {
    PointInputsTo(share_.begin);
    std::vector<void*> copies;
    for (int i = 1; i < m_.size() && m_.kind() == CollectiveKind::kReduceUpdateGather; ++i) {
      const int peer = (m_.rank() + i) % m_.size();
      if (m_.output(peer) == m_.output(m_.rank())) continue;
      copies.push_back(m_.output(peer) + share_.begin * m_.element());
    }
    Arithmetic arithmetic = m_.arithmetic();
    arithmetic.stores = stores_;
    update_.fused(
        share_.begin, share_.count,
        {inputs_.data(), m_.size(), arithmetic, copies.data(), static_cast<int>(copies.size())});
  }

  void PointInputsTo(uint64_t first) {
    for (int r = 0; r < m_.size(); ++r)
      inputs_[static_cast<size_t>(r)] = m_.input(r) + first * m_.element();
  }

  const void* ReducePiece(uint64_t first, uint64_t count) {
    PointInputsTo(first);
    void* reduced = scratch_.data() + AlignmentGap(scratch_.data());
    Reduce(
        inputs_.data(), m_.size(), &reduced, 1, count, m_.collective().input.dtype,
        m_.arithmetic());
    return reduced;
  }

  void StorePiece(uint64_t first, uint64_t count) {
    for (int i = 1; i < m_.size(); ++i) {
      const int peer = (m_.rank() + i) % m_.size();
      char* to = m_.output(peer) + first * m_.element();
      const char* from = m_.output(m_.rank()) + first * m_.element();
      if (to == from) continue;
      if (stores_ == Stores::kStreaming) {
        CopyUnfenced(to, from, count * m_.element());
      } else {
        Copy(to, from, count * m_.element(), stores_);
      }
    }
  }

  static uint64_t AlignmentGap(const char* data) {
    return -reinterpret_cast<uintptr_t>(data) % kCacheLine;
  }

  const Meeting& m_;
  const ShareUpdate& update_;
  Range share_;
  Stores stores_;
  std::vector<const void*> inputs_;
  std::vector<char> scratch_;
};

}  // namespace

bool UpdateInOnePass(
    const std::shared_ptr<ShmGroup>& group, Engine& engine, const Collective& collective,
    const ShareUpdate& update, const std::function<void()>& barrier) {
  const auto met = std::make_shared<Met>(group, collective);
  engine.Start(std::make_unique<MeetingOperation>(met, CallOf(collective, group->rank()))).Wait();
  if (!met->mapped) return false;
  Walk(met->meeting, update).Run();
  barrier();
  return true;
}

}  // namespace dtrun::ops::shm
