#include "ops/hierarchical/hierarchical_communicator.h"

#include <algorithm>
#include <deque>

#include "dtrun/error.h"
#include "ops/communicator/communicator_setup.h"
#include "ops/hierarchical/hierarchical_group.h"
#include "ops/hierarchical/hierarchical_operation.h"
#include "ops/reduce/reduce.h"
#include "ops/self/self_communicator.h"

namespace dtrun::ops {
namespace {

using hierarchical::Group;
using hierarchical::HierarchicalMessage;
using hierarchical::HierarchicalOperation;

class HierarchicalCommunicator : public Communicator {
 public:
  HierarchicalCommunicator(
      std::unique_ptr<Communicator> local, std::shared_ptr<Communicator> cross,
      const HostMap& hosts, const Route& route, Engine& engine, Members members)
      : Communicator(std::move(members)),
        engine_(engine),
        group_(std::make_shared<Group>(hosts, engine)),
        sends_(static_cast<size_t>(hosts.size())),
        receives_(static_cast<size_t>(hosts.size())) {
    Group& group = *group_;
    group.members = shared_members();
    group.rank = cross->rank();
    group.host = hosts.host(group.rank);
    group.local_rank = hosts.local_rank(group.rank);
    group.route = route;
    group.local = std::move(local);
    group.down = group.local->Duplicate();
    group.calls = group.local->Duplicate();
    group.flat = std::move(cross);
    group.leaders = group.flat->Split(group.leads() ? 0 : -1, group.host);
    group.rail = group.flat->Split(group.on_rail() ? group.local_rank : -1, group.host);
  }

  int rank() const override { return group_->rank; }
  int size() const override { return group_->hosts.size(); }
  const char* backend() const override { return "hierarchical"; }
  Engine* engine() override { return &engine_; }

  // A collective that a rank starts is visible on its host at once, and on other hosts when its
  // host is complete.
  bool MayBeAwaited() override {
    if (group_->exchange != nullptr) return false;
    return group_->calls->MayBeAwaited() ||
           (group_->leaders != nullptr && group_->leaders->MayBeAwaited());
  }

  void Leave() override { group_->flat->Leave(); }
  std::vector<int> Left() override { return group_->flat->Left(); }

  std::optional<Route> route() const override { return group_->route; }

  void SetRoute(const Route& route) override {
    BeQuiet();
    group_->route = route;
  }

  std::unique_ptr<Memory> Allocate(uint64_t bytes) override {
    BeQuiet();
    return group_->local->Allocate(bytes);
  }

  void NoteLate(const std::vector<int>& ranks) override { group_->flat->NoteLate(ranks); }

  // The ranks that are left of a host get new shared memory. A rank that is lost meanwhile makes
  // this fail on some ranks, which form `flat` anew. The first operation of the other ranks then
  // fails, so that they come to the same.
  std::unique_ptr<Communicator> ReformLeft() override {
    for (std::shared_ptr<Communicator> flat = group_->flat->Reform();;) {
      try {
        return Rebuild(flat);
      } catch (const Error& error) {
        if (error.code() != ErrorCode::kPeerLost) throw;
        flat = flat->Reform();
      }
    }
  }

  // Ranks of one host need only `local`. Ranks on different hosts need only `flat`.
  std::unique_ptr<Communicator> Create(
      Bootstrap& bootstrap, const std::vector<int>& ranks, Members members) override {
    BeQuiet();
    const HostMap hosts = group_->hosts.Subset(ranks);
    if (hosts.host_count() == 1) {
      return CreateLocal(bootstrap, ranks, std::move(members));
    }
    if (hosts.host_count() == hosts.size()) {
      return group_->flat->Create(bootstrap, ranks, std::move(members));
    }
    auto local = CreateLocalPart(bootstrap, ranks, hosts, members);
    auto cross = group_->flat->Create(bootstrap, ranks, members);
    return CreateHierarchicalCommunicator(
        std::move(local), std::move(cross), hosts, group_->route, engine_, std::move(members));
  }

 protected:
  Work StartChecked(Collective collective) override {
    if (!base::IsMessage(collective.kind)) {
      while (!under_way_.empty() && HasEnded(under_way_.front())) under_way_.pop_front();
      return under_way_.emplace_back(
          engine_.Start(std::make_unique<HierarchicalOperation>(group_, std::move(collective))));
    }
    auto& counts = collective.kind == CollectiveKind::kSend ? sends_ : receives_;
    const uint64_t sequence = ++counts[static_cast<size_t>(collective.root)];
    return engine_.Start(std::make_unique<HierarchicalMessage>(group_, collective, sequence));
  }

 private:
  // Collective over `flat`, the ranks that are left.
  std::unique_ptr<Communicator> Rebuild(const std::shared_ptr<Communicator>& flat) {
    std::vector<int> ranks;
    for (const int rank : flat->members().world_ranks) ranks.push_back(group_->RankOf(rank));
    const HostMap hosts = group_->hosts.Subset(ranks);
    CommunicatorBootstrap bootstrap(*flat);
    auto local = CreateLocalPart(bootstrap, ranks, hosts, flat->members());
    return CreateHierarchicalCommunicator(
        std::move(local), flat, hosts, group_->route, engine_, flat->members());
  }

  // Waits for all collectives. Afterwards the calling thread has the inner communicators to itself.
  void BeQuiet() {
    for (; !under_way_.empty(); under_way_.pop_front()) {
      try {
        under_way_.front().Wait();
      } catch (const Error& error) {
        if (error.code() != ErrorCode::kMismatch) throw;  // its caller can go on, and so can we
      }
    }
  }

  static bool HasEnded(const Work& work) {
    try {
      return work.Done();
    } catch (const Error&) {
      return true;
    }
  }

  std::unique_ptr<Communicator> CreateLocal(
      Bootstrap& bootstrap, const std::vector<int>& ranks, Members members) {
    if (ranks.size() == 1) return CreateSelfCommunicator(std::move(members));
    std::vector<int> local_ranks;
    for (const int rank : ranks) local_ranks.push_back(group_->hosts.local_rank(rank));
    return group_->local->Create(bootstrap, local_ranks, std::move(members));
  }

  // The communicator of those ranks of a subset that share this host. `hosts` is the map of the
  // subset.
  std::unique_ptr<Communicator> CreateLocalPart(
      Bootstrap& bootstrap, const std::vector<int>& ranks, const HostMap& hosts,
      const Members& members) {
    const std::vector<int>& part = hosts.ranks(hosts.host(bootstrap.rank()));
    std::vector<int> part_ranks;
    for (const int place : part) part_ranks.push_back(ranks[static_cast<size_t>(place)]);
    SubsetBootstrap part_bootstrap(bootstrap, part);
    std::unique_ptr<Communicator> local;
    std::exception_ptr error;
    try {
      local = CreateLocal(part_bootstrap, part_ranks, members.Subset(part, ""));
    } catch (...) {
      error = std::current_exception();
    }
    part_bootstrap.Finish();
    if (error) std::rethrow_exception(error);
    return local;
  }

  Engine& engine_;
  std::shared_ptr<Group> group_;
  std::vector<uint64_t> sends_, receives_;  // messages, by peer
  std::deque<Work> under_way_;              // collectives; some may have ended
};

}  // namespace

std::unique_ptr<Communicator> CreateHierarchicalCommunicator(
    std::unique_ptr<Communicator> local, std::shared_ptr<Communicator> cross, const HostMap& hosts,
    const Route& route, Engine& engine, Members members) {
  return std::make_unique<HierarchicalCommunicator>(
      std::move(local), std::move(cross), hosts, route, engine, std::move(members));
}

}  // namespace dtrun::ops

namespace dtrun::ops::hierarchical {
namespace {

DType NarrowOf(WireDType wire) { return wire == WireDType::kF16 ? DType::kF16 : DType::kBF16; }

}  // namespace

std::shared_ptr<char> StagingPool::Take(uint64_t bytes) {
  const auto fits = [bytes](const Block& block) { return block.bytes >= bytes; };
  const auto found = std::find_if(free_.begin(), free_.end(), fits);
  Block block;
  if (found == free_.end()) {
    block = {std::unique_ptr<char[]>(new char[bytes]), bytes};
  } else {
    block = std::move(*found);
    free_.erase(found);
  }
  char* data = block.data.get();
  // The deleter must be copyable, so it cannot own the block.
  return std::shared_ptr<char>(
      data, [this, size = block.bytes, owned = block.data.release()](char*) {
        free_.push_back({std::unique_ptr<char[]>(owned), size});
      });
}

Staging::Staging(Group& group, uint64_t count, DType dtype) : buffer_(nullptr, count, dtype) {
  if (count == 0) return;
  memory_ = group.staging.Take(buffer_.bytes());
  buffer_.data = memory_.get();
}

WireBuffer::WireBuffer(Group& group, const Buffer& values)
    : staging_(group, values.count, NarrowOf(group.route.wire)), buffer_(staging_.buffer()) {
  if (!used()) return;
  Convert(values.data, values.dtype, buffer_.data, buffer_.dtype, values.count);
}

WireBuffer WireBuffer::Slice(const Range& range) const {
  WireBuffer slice = *this;
  slice.buffer_ = buffer_.Slice(range.begin, range.count);
  return slice;
}

void WireBuffer::WidenInto(const Buffer& values) const {
  if (!used() || values.count == 0) return;
  Convert(buffer_.data, buffer_.dtype, values.data, values.dtype, values.count);
}

}  // namespace dtrun::ops::hierarchical
