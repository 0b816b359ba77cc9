#include "ops/self/self_communicator.h"

#include <cstring>

#include "ops/reduce/reduce.h"

namespace dtrun::ops {
namespace {

class SelfCommunicator : public Communicator {
 public:
  using Communicator::Communicator;
  int rank() const override { return 0; }
  int size() const override { return 1; }
  const char* backend() const override { return "self"; }
  bool MayBeAwaited() override { return false; }
  bool RingsWhenAwaited() const override { return true; }
  std::unique_ptr<Memory> Allocate(uint64_t bytes) override { return AllocatePrivate(bytes); }
  std::unique_ptr<Memory> AllocateShared(uint64_t bytes) override { return AllocatePrivate(bytes); }
  std::unique_ptr<Communicator> Create(
      Bootstrap&, const std::vector<int>&, Members members) override {
    return std::make_unique<SelfCommunicator>(std::move(members));
  }

 protected:
  // There are no messages here: a message needs a peer.
  Work StartChecked(Collective collective) override {
    const Buffer &input = collective.input, &output = collective.output;
    if (Combines(collective.kind)) {
      const void* in = input.data;
      void* out = output.data;
      Reduce(
          &in, 1, &out, 1, input.count, input.dtype,
          {.op = collective.op, .divisor = collective.divisor, .scale = collective.scale});
    } else if (output.count > 0 && output.data != input.data) {
      std::memcpy(output.data, input.data, input.bytes());
    }
    return Work();
  }
};

}  // namespace

std::unique_ptr<Communicator> CreateSelfCommunicator(Members members) {
  return std::make_unique<SelfCommunicator>(std::move(members));
}

}  // namespace dtrun::ops
