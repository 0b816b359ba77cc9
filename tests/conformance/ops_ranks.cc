#include "tests/conformance/ops_ranks.h"

#include <utility>

namespace dtrun::testing {
namespace {

class OpsStarted : public Started {
 public:
  explicit OpsStarted(ops::Work work) : work_(std::move(work)) {}
  bool Test() override { return work_.Test(); }
  void Wait() override { work_.Wait(); }

 private:
  ops::Work work_;
};

class OpsRanks : public Ranks {
 public:
  explicit OpsRanks(ops::Communicator& communicator) : c_(communicator) {}
  explicit OpsRanks(std::unique_ptr<ops::Communicator> owned)
      : owned_(std::move(owned)), c_(*owned_) {}

  int rank() const override { return c_.rank(); }
  int size() const override { return c_.size(); }

  std::unique_ptr<Started> Start(const Operation& o) override { return Wrap(Begin(o)); }
  std::unique_ptr<Started> StartBarrier() override { return Wrap(c_.StartBarrier()); }
  std::unique_ptr<Started> StartSend(Buffer buffer, int peer) override {
    return Wrap(c_.StartSend(buffer, peer));
  }
  std::unique_ptr<Started> StartReceive(Buffer buffer, int peer) override {
    return Wrap(c_.StartReceive(buffer, peer));
  }

  std::shared_ptr<void> Allocate(uint64_t bytes) override {
    std::shared_ptr<ops::Memory> memory = c_.Allocate(bytes);
    return {memory, memory->data()};
  }
  std::unique_ptr<Ranks> Duplicate() override { return Own(c_.Duplicate()); }
  std::unique_ptr<Ranks> Split(int colour, int key) override { return Own(c_.Split(colour, key)); }
  std::unique_ptr<Ranks> Subset(const std::vector<int>& ranks) override {
    return Own(c_.Subset(ranks));
  }

 private:
  ops::Work Begin(const Operation& o) {
    switch (o.kind) {
      case Kind::kAllReduce: return c_.StartAllReduce(o.input, o.output, o.op, o.scale);
      case Kind::kReduceScatter:
        return c_.StartReduceScatter(o.input, o.output, o.op, o.scale, o.send_counts);
      case Kind::kReduce: return c_.StartReduce(o.input, o.output, o.root, o.op, o.scale);
      case Kind::kBroadcast:
        return c_.StartBroadcast(c_.rank() == o.root ? o.input : o.output, o.root);
      case Kind::kAllGather: return c_.StartAllGather(o.input, o.output, o.receive_counts);
      case Kind::kAllToAll:
        return c_.StartAllToAll(o.input, o.output, o.send_counts, o.receive_counts);
      case Kind::kGather: return c_.StartGather(o.input, o.output, o.root, o.receive_counts);
      case Kind::kScatter: return c_.StartScatter(o.input, o.output, o.root, o.send_counts);
    }
    return {};
  }

  static std::unique_ptr<Started> Wrap(ops::Work work) {
    return std::make_unique<OpsStarted>(std::move(work));
  }
  static std::unique_ptr<Ranks> Own(std::unique_ptr<ops::Communicator> communicator) {
    if (communicator == nullptr) return nullptr;
    return std::make_unique<OpsRanks>(std::move(communicator));
  }

  std::unique_ptr<ops::Communicator> owned_;
  ops::Communicator& c_;
};

}  // namespace

std::unique_ptr<Ranks> OverOps(ops::Communicator& communicator) {
  return std::make_unique<OpsRanks>(communicator);
}

}  // namespace dtrun::testing
