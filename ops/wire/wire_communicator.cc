#include "ops/wire/wire_communicator.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <string>
#include <utility>

#include "ops/wire/wire_operation.h"

namespace dtrun::ops::wire {
namespace {

// Collective: returns the number of a new communicator, different from all others of the job. The
// first rank of the communicator makes it from its own rank and the count of numbers that it has
// given.
uint64_t AgreeOnContext(Bootstrap& bootstrap, int job_rank, std::atomic<uint64_t>& named) {
  constexpr int kRankBits = 24;
  const uint64_t mine = named++ << kRankBits | static_cast<uint64_t>(job_rank);
  const std::string bytes(reinterpret_cast<const char*>(&mine), sizeof mine);
  uint64_t context = 0;
  std::memcpy(&context, bootstrap.AllGather(bytes)[0].data(), sizeof context);
  return context;
}

class WireCommunicator : public Communicator {
 public:
  WireCommunicator(
      const char* backend, std::shared_ptr<Endpoint> endpoint, Bootstrap& bootstrap,
      std::vector<int> job_ranks, Engine& engine, Members members)
      : Communicator(std::move(members)),
        backend_(backend),
        engine_(engine),
        group_(std::make_shared<Group>()) {
    group_->endpoint = std::move(endpoint);
    group_->members = shared_members();
    group_->rank = bootstrap.rank();
    group_->size = bootstrap.size();
    group_->job_ranks = std::move(job_ranks);
    group_->context = AgreeOnContext(
        bootstrap, group_->job_ranks[static_cast<size_t>(group_->rank)], group_->endpoint->named);
  }

  int rank() const override { return group_->rank; }
  int size() const override { return group_->size; }
  const char* backend() const override { return backend_; }
  Engine* engine() override { return &engine_; }
  bool MayBeAwaited() override {
    Endpoint& endpoint = *group_->endpoint;
    endpoint.wire->Poll(polled_);
    const auto& collectives = endpoint.mailroom->Box(group_->context).collectives;
    return collectives.count(group_->collectives + 1) != 0;
  }
  void Leave() override {
    Endpoint& endpoint = *group_->endpoint;
    const int self = group_->job_ranks[static_cast<size_t>(rank())];
    const Header header(
        {.context = group_->context,
         .sequence = 0,
         .bytes = 0,
         .source = self,
         .tags = 0,
         .channel = Channel::kLeave,
         .has_data = 0,
         .call = {}},
        {}, {}, 0);
    const auto outbox = std::make_shared<Outbox>();
    outbox->memory.push_back(header);
    for (const int peer : group_->job_ranks) {
      if (peer == self) continue;
      ++outbox->open;
      endpoint.wire->Send(
          peer, Mailroom::kTag, header.memory().get(), header.envelope().bytes,
          Wire::Mode::kBuffered, outbox, 0);
    }
  }
  std::vector<int> Left() override {
    Endpoint& endpoint = *group_->endpoint;
    if (endpoint.wire->usable()) endpoint.wire->Poll(polled_);
    const std::vector<int>& gone = endpoint.mailroom->left();
    std::vector<int> left;
    for (int r = 0; r < size() && !gone.empty(); ++r) {
      const int job_rank = group_->job_ranks[static_cast<size_t>(r)];
      if (std::find(gone.begin(), gone.end(), job_rank) != gone.end()) left.push_back(r);
    }
    return left;
  }
  std::unique_ptr<Memory> Allocate(uint64_t bytes) override {
    Barrier();
    return AllocatePrivate(bytes);
  }
  std::unique_ptr<Communicator> Create(
      Bootstrap& bootstrap, const std::vector<int>& ranks, Members members) override {
    std::vector<int> job_ranks;
    for (const int r : ranks) job_ranks.push_back(group_->job_ranks[static_cast<size_t>(r)]);
    return std::make_unique<WireCommunicator>(
        backend_, group_->endpoint, bootstrap, std::move(job_ranks), engine_, std::move(members));
  }

 protected:
  Work StartChecked(Collective collective) override {
    const bool message =
        collective.kind == CollectiveKind::kSend || collective.kind == CollectiveKind::kReceive;
    if (message) {
      return engine_.Start(std::make_unique<MessageOperation>(group_, std::move(collective)));
    }
    return engine_.Start(std::make_unique<CollectiveOperation>(group_, std::move(collective)));
  }

 private:
  const char* backend_;
  Engine& engine_;
  std::shared_ptr<Group> group_;
  uint64_t polled_ = 0;
};

// Polls the wire, also while no operation is under way.
class WireDriver : public Driver {
 public:
  explicit WireDriver(const std::shared_ptr<Endpoint>& endpoint) : endpoint_(endpoint) {}

  bool Advance() override {
    const std::shared_ptr<Endpoint> endpoint = endpoint_.lock();
    if (endpoint == nullptr) return false;
    endpoint->wire->Poll(polled_);
    return std::exchange(seen_, endpoint->wire->events()) != endpoint->wire->events();
  }
  base::TimePoint Look(base::TimePoint) override { return base::TimePoint::max(); }
  bool Arm() override {
    const std::shared_ptr<Endpoint> endpoint = endpoint_.lock();
    return endpoint == nullptr || endpoint->wire->Arm();
  }
  bool LooksSlowly() const override { return true; }

 private:
  std::weak_ptr<Endpoint> endpoint_;
  uint64_t polled_ = 0, seen_ = 0;
};

}  // namespace

std::shared_ptr<Endpoint> MakeEndpoint(std::unique_ptr<Wire> of_job, int size, Engine& engine) {
  auto endpoint = std::make_shared<Endpoint>(std::move(of_job), size);
  engine.AddDriver(std::make_shared<WireDriver>(endpoint));
  return endpoint;
}

std::unique_ptr<Communicator> CreateWireCommunicator(
    const char* backend, std::shared_ptr<Endpoint> endpoint, Bootstrap& bootstrap,
    std::vector<int> job_ranks, Engine& engine, Members members) {
  return std::make_unique<WireCommunicator>(
      backend, std::move(endpoint), bootstrap, std::move(job_ranks), engine, std::move(members));
}

}  // namespace dtrun::ops::wire
