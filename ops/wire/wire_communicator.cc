#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <optional>
#include <string>
#include <utility>

#include "base/text.h"
#include "ops/wire/wire.h"
#include "ops/wire/wire_group.h"
#include "ops/wire/wire_operation.h"
#include "ops/wire/wire_reform.h"

namespace dtrun::ops::wire {
namespace {

// Collective: returns the number of the first rank.
uint64_t AgreeOnContext(Bootstrap& bootstrap, int job_rank, Endpoint& endpoint) {
  const uint64_t mine = endpoint.NewContext(job_rank);
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
        bootstrap, group_->job_ranks[static_cast<size_t>(group_->rank)], *group_->endpoint);
  }

  WireCommunicator(
      const char* backend, std::shared_ptr<Group> group, Engine& engine, Members members)
      : Communicator(std::move(members)),
        backend_(backend),
        engine_(engine),
        group_(std::move(group)) {
    group_->members = shared_members();
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
    std::vector<int> others;
    for (int peer = 0; peer < size(); ++peer) {
      if (peer != rank()) others.push_back(peer);
    }
    const int self = group_->job_ranks[static_cast<size_t>(rank())];
    SendNote(
        *group_->endpoint, group_->context, group_->job_ranks, std::make_shared<Outbox>(),
        {.channel = Channel::kLeave, .source = self}, others);
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

  std::optional<Error> Loss() override {
    Endpoint& endpoint = *group_->endpoint;
    if (endpoint.mailroom->losses() > 0) {
      const LossNotice& notice = endpoint.mailroom->Box(group_->context).loss;
      if (!notice.why.empty()) return notice.InWords(members());
    }
    for (const LostPeer& peer : endpoint.wire->lost()) {
      const int rank = group_->RankOf(peer.rank);
      if (rank < 0 || peer.left) continue;
      const LossNotice notice{rank, rank, peer.why};
      wire::TellLoss(*group_, std::make_shared<Outbox>(), notice);
      return notice.InWords(members());
    }
    return std::nullopt;
  }
  void TellLoss(const Error& cause) override {
    const std::vector<int>& all = members().world_ranks;
    const auto named = cause.ranks().empty()
                           ? all.end()
                           : std::find(all.begin(), all.end(), cause.ranks().front());
    const int rank = named == all.end() ? -1 : static_cast<int>(named - all.begin());
    wire::TellLoss(*group_, std::make_shared<Outbox>(), {-1, rank, cause.what()});
  }
  void NoteLate(const std::vector<int>& ranks) override { group_->NoteLate(ranks); }
  std::unique_ptr<Communicator> ReformLeft() override {
    const auto survivors = std::make_shared<Survivors>();
    // The operations of the old members fail from now on, so this operation has other members.
    engine_
        .Start(std::make_unique<ReformOperation>(
            group_, std::make_shared<const Members>(members()), survivors))
        .Wait();
    auto group = std::make_shared<Group>();
    group->endpoint = group_->endpoint;
    group->context = survivors->context;
    group->size = static_cast<int>(survivors->ranks.size());
    for (size_t i = 0; i < survivors->ranks.size(); ++i) {
      if (survivors->ranks[i] == rank()) group->rank = static_cast<int>(i);
      group->job_ranks.push_back(group_->job_ranks[static_cast<size_t>(survivors->ranks[i])]);
    }
    return std::make_unique<WireCommunicator>(
        backend_, std::move(group), engine_, members().Subset(survivors->ranks, "/left"));
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
    try {
      endpoint->wire->Poll(polled_);
      AnswerLateProposals(*endpoint);
    } catch (const Error&) {
      return false;  // an operation that needs the wire polls it too, and reports the error
    }
    return std::exchange(seen_, endpoint->wire->events()) != endpoint->wire->events();
  }
  base::TimePoint Look(base::TimePoint) override { return base::TimePoint::max(); }
  bool Arm() override {
    const std::shared_ptr<Endpoint> endpoint = endpoint_.lock();
    return endpoint == nullptr || endpoint->wire->Arm();
  }
  bool LooksSlowly() const override { return true; }
  void LosePeers() override {
    const std::shared_ptr<Endpoint> endpoint = endpoint_.lock();
    if (endpoint != nullptr) endpoint->wire->LosePeers();
  }

 private:
  std::weak_ptr<Endpoint> endpoint_;
  uint64_t polled_ = 0, seen_ = 0;
};

}  // namespace

std::unique_ptr<Communicator> CreateWireWorld(
    const char* backend, std::unique_ptr<Wire> of_job, Bootstrap& bootstrap, Engine& engine,
    Members members, int relays_from) {
  auto endpoint = std::make_shared<Endpoint>(std::move(of_job), bootstrap.size(), relays_from);
  engine.AddDriver(std::make_shared<WireDriver>(endpoint));
  std::vector<int> all(static_cast<size_t>(bootstrap.size()));
  std::iota(all.begin(), all.end(), 0);
  return CreateWireCommunicator(
      backend, std::move(endpoint), bootstrap, std::move(all), engine, std::move(members));
}

std::unique_ptr<Communicator> CreateWireCommunicator(
    const char* backend, std::shared_ptr<Endpoint> endpoint, Bootstrap& bootstrap,
    std::vector<int> job_ranks, Engine& engine, Members members) {
  return std::make_unique<WireCommunicator>(
      backend, std::move(endpoint), bootstrap, std::move(job_ranks), engine, std::move(members));
}

Waker::Waker(int file, std::shared_ptr<Segment> doorbell)
    : file_(file), doorbell_(std::move(doorbell)), stopper_(::eventfd(0, EFD_CLOEXEC)) {
  if (stopper_.get() < 0) ThrowErrno("eventfd");
  thread_ = std::thread([this] { Run(); });
}

Waker::~Waker() {
  stop_ = true;
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(stopper_.get(), &one, sizeof one);
  Arm();
  thread_.join();
}

void Waker::Arm(std::chrono::microseconds pause) {
  pause_.store(pause, std::memory_order_relaxed);
  if (armed_.exchange(true, std::memory_order_acq_rel)) return;
  armed_.notify_one();
}

void Waker::Run() {
  for (;;) {
    armed_.wait(false, std::memory_order_acquire);
    std::this_thread::sleep_for(pause_.load(std::memory_order_relaxed));
    pollfd files[] = {{file_, POLLIN, 0}, {stopper_.get(), POLLIN, 0}};
    if (::poll(files, 2, -1) < 0) continue;
    if (stop_) return;
    armed_.store(false, std::memory_order_release);
    reinterpret_cast<Doorbell*>(doorbell_->data())->Ring();
  }
}

}  // namespace dtrun::ops::wire
