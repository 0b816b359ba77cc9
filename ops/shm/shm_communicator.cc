#include "ops/shm/shm_communicator.h"

#include "ops/communicator_bootstrap.h"
#include "ops/shm/shm_group.h"
#include "ops/shm/shm_operation.h"

namespace dtrun::ops {
namespace {

using shm::Region;
using shm::ShmGroup;
using shm::ShmOperation;

class ShmMemory : public Memory {
 public:
  ShmMemory(
      std::shared_ptr<ShmGroup> group, std::shared_ptr<const Region> region, const Segment* block)
      : Memory(block == nullptr ? nullptr : block->data(), block == nullptr ? 0 : block->bytes()),
        group_(std::move(group)),
        region_(std::move(region)) {}
  ~ShmMemory() override { group_->RemoveRegion(region_); }

 private:
  std::shared_ptr<ShmGroup> group_;
  std::shared_ptr<const Region> region_;
};

class ShmCommunicator : public Communicator {
 public:
  ShmCommunicator(Bootstrap& bootstrap, Engine& engine)
      : engine_(engine), group_(std::make_shared<ShmGroup>(bootstrap, engine)) {}

  int rank() const override { return group_->rank(); }
  int size() const override { return group_->size(); }
  const char* backend() const override { return "shm"; }

  std::unique_ptr<Memory> Allocate(uint64_t bytes) override {
    // Nobody may depend on this rank's progress in an earlier operation while it talks to the
    // exchange.
    Barrier();
    std::shared_ptr<const Region> region = group_->AddRegion(bytes);
    const Segment* block = region->blocks[static_cast<size_t>(rank())].get();
    return std::make_unique<ShmMemory>(group_, std::move(region), block);
  }

  std::unique_ptr<Communicator> Duplicate() override {
    CommunicatorBootstrap bootstrap(*this, &group_->exchange());
    return std::make_unique<ShmCommunicator>(bootstrap, engine_);
  }

 protected:
  Work Start(const Collective& collective) override {
    return engine_.Start(std::make_unique<ShmOperation>(group_, collective));
  }

 private:
  Engine& engine_;
  std::shared_ptr<ShmGroup> group_;
};

}  // namespace

std::unique_ptr<Communicator> CreateShmCommunicator(Bootstrap& bootstrap, Engine& engine) {
  return std::make_unique<ShmCommunicator>(bootstrap, engine);
}

}  // namespace dtrun::ops
