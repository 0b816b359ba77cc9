#include "ops/self/self_communicator.h"

#include <cstring>

namespace dtrun::ops {
namespace {

class SelfCommunicator : public Communicator {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  const char* backend() const override { return "self"; }
  std::unique_ptr<Memory> Allocate(uint64_t bytes) override { return AllocatePrivate(bytes); }
  std::unique_ptr<Communicator> Duplicate() override {
    return std::make_unique<SelfCommunicator>();
  }

 protected:
  Work Start(const Collective& collective) override {
    const Buffer& input = collective.input;
    if (collective.kind == CollectiveKind::kAllGather && input.count > 0) {
      std::memcpy(collective.output.data, input.data, input.bytes());
    }
    return Work();
  }
};

}  // namespace

std::unique_ptr<Communicator> CreateSelfCommunicator() {
  return std::make_unique<SelfCommunicator>();
}

}  // namespace dtrun::ops
