#include "ops/shm/shm_communicator.h"

#include "ops/self/self_communicator.h"
#include "ops/shm/reach.h"
#include "ops/shm/shm_group.h"
#include "ops/shm/shm_message.h"
#include "ops/shm/shm_operation.h"
#include "ops/shm/shm_update.h"

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
  // This rank brings `mine` bytes to a new region, and uses `bytes` of the block of rank `owner`,
  // of which part `part` of `parts` comes to lie near it.
  std::unique_ptr<Memory> AllocateBlock(
      uint64_t mine, int owner, uint64_t bytes, int part, int parts) {
    // Nobody may depend on this rank's progress in an earlier operation while it talks to the
    // exchange.
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
