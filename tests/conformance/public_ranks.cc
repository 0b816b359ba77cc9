#include "tests/conformance/public_ranks.h"

#include <optional>
#include <utility>

namespace dtrun::testing {
namespace {

class PublicStarted : public Started {
 public:
  explicit PublicStarted(Work work) : work_(std::move(work)) {}
  bool Test() override { return work_.Test(); }
  void Wait() override { work_.Wait(); }

 private:
  Work work_;
};

class PublicRanks : public Ranks {
 public:
  explicit PublicRanks(Communicator& communicator) : c_(communicator) {}
  explicit PublicRanks(std::optional<Communicator> owned) : owned_(std::move(owned)), c_(*owned_) {}

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
    auto memory = std::make_shared<Memory>(c_.Allocate(bytes));
    return {memory, memory->data()};
  }
  std::unique_ptr<Ranks> Duplicate() override { return Own(c_.Duplicate()); }
  std::unique_ptr<Ranks> Split(int colour, int key) override { return Own(c_.Split(colour, key)); }
  std::unique_ptr<Ranks> Subset(const std::vector<int>& ranks) override {
    return Own(c_.Subset(ranks));
  }

 private:
  Work Begin(const Operation& o) {
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
    return Work(nullptr);
  }

  static std::unique_ptr<Started> Wrap(Work work) {
    return std::make_unique<PublicStarted>(std::move(work));
  }
  static std::unique_ptr<Ranks> Own(std::optional<Communicator> communicator) {
    if (!communicator) return nullptr;
    return std::make_unique<PublicRanks>(std::move(communicator));
  }

  std::optional<Communicator> owned_;
  Communicator& c_;
};

}  // namespace

std::unique_ptr<Ranks> OverPublicApi(Communicator& communicator) {
  return std::make_unique<PublicRanks>(communicator);
}

}  // namespace dtrun::testing
