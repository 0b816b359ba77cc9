// How the ranks that are left of a communicator agree (ops/wire/wire_reform.cc), in random
// schedules: ranks end at any moment, some of their last messages arrive, and the others learn of
// the end one after another. The messages go over a simulated wire.

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "ops/wire/wire_reform.h"

namespace {

using dtrun::ops::Members;
using dtrun::ops::Operation;
using dtrun::ops::wire::Endpoint;
using dtrun::ops::wire::Group;
using dtrun::ops::wire::Listener;
using dtrun::ops::wire::LostPeer;
using dtrun::ops::wire::ReformOperation;
using dtrun::ops::wire::Survivors;
using dtrun::ops::wire::Wire;

// The messages under way between all ranks. Those of a pair of ranks keep their order.
struct Network {
  explicit Network(int size) : links(static_cast<size_t>(size * size)), ranks(size) {}
  std::deque<std::string>& Link(int from, int to) {
    return links[static_cast<size_t>(from * ranks + to)];
  }
  std::vector<std::deque<std::string>> links;
  int ranks;
};

class SimulatedWire : public Wire {
 public:
  SimulatedWire(Network& network, int rank) : network_(network), rank_(rank) {}

  void Send(
      int rank, int, const void* data, uint64_t bytes, Mode, std::shared_ptr<Listener> listener,
      uint64_t key) override {
    network_.Link(rank_, rank).emplace_back(static_cast<const char*>(data), bytes);
    ended_.push_back({std::move(listener), key});
  }
  void Receive(
      int, int, void* data, uint64_t, std::shared_ptr<Listener> listener, uint64_t key) override {
    receives_.push_back({data, {std::move(listener), key}});
  }
  void Poll(uint64_t&) override {
    std::vector<End> ended;
    ended.swap(ended_);
    for (const End& end : ended) end.listener->Ended(end.key);
  }
  bool needs_polling() const override { return true; }
  const std::vector<LostPeer>& lost() const override { return lost_; }
  void Close(const Listener&) override {}
  bool usable() const override { return true; }
  int largest_tag() const override { return 1 << 20; }
  uint64_t message_bytes() const override { return 1 << 16; }

  // One message from `rank` arrives. It is lost if this rank takes the other for lost.
  void Arrive(int rank) {
    std::deque<std::string>& link = network_.Link(rank, rank_);
    const std::string message = std::move(link.front());
    link.pop_front();
    if (knows(rank)) return;
    const auto [data, end] = std::move(receives_.front());
    receives_.pop_front();
    std::memcpy(data, message.data(), message.size());
    end.listener->Ended(end.key);
  }
  void Lose(int rank) { lost_.push_back({rank, "its process has ended"}); }
  bool knows(int rank) const {
    return std::any_of(
        lost_.begin(), lost_.end(), [rank](const auto& peer) { return peer.rank == rank; });
  }

 private:
  struct End {
    std::shared_ptr<Listener> listener;
    uint64_t key;
  };
  Network& network_;
  int rank_;
  std::vector<End> ended_;
  std::deque<std::pair<void*, End>> receives_;
  std::vector<LostPeer> lost_;
};

// A rank that forms its communicator anew as long as the communicator has a lost rank.
class FakeRank {
 public:
  FakeRank(Network& network, int rank, int size) : rank_(rank) {
    auto wire = std::make_unique<SimulatedWire>(network, rank);
    wire_ = wire.get();
    endpoint_ = std::make_shared<Endpoint>(std::move(wire), size);
    std::vector<int> all;
    for (int r = 0; r < size; ++r) all.push_back(r);
    Join(1, all);
  }

  void Advance() {
    uint64_t seen = 0;
    wire_->Poll(seen);
    dtrun::ops::wire::AnswerLateProposals(*endpoint_);
    const auto& ranks = group_->job_ranks;
    const bool broken =
        std::any_of(ranks.begin(), ranks.end(), [this](int rank) { return wire_->knows(rank); });
    if (operation_ == nullptr && broken) {
      survivors_ = std::make_shared<Survivors>();
      operation_ = std::make_unique<ReformOperation>(
          group_, std::make_shared<const Members>(Members::World(group_->size)), survivors_);
    }
    if (operation_ == nullptr) return;
    for (;;) {
      const Operation::Progress progress = operation_->Advance();
      if (progress == Operation::Progress::kNone) return;
      if (progress == Operation::Progress::kDone) break;
    }
    operation_.reset();
    std::vector<int> left;
    for (const int r : survivors_->ranks) left.push_back(ranks[static_cast<size_t>(r)]);
    Join(survivors_->context, left);
  }

  SimulatedWire& wire() { return *wire_; }
  bool busy() const { return operation_ != nullptr; }
  const std::vector<int>& ranks() const { return group_->job_ranks; }
  const std::map<uint64_t, std::vector<int>>& joined() const { return joined_; }
  uint64_t context() const { return group_->context; }

 private:
  void Join(uint64_t context, const std::vector<int>& job_ranks) {
    auto group = std::make_shared<Group>();
    group->endpoint = endpoint_;
    group->context = context;
    group->size = static_cast<int>(job_ranks.size());
    group->job_ranks = job_ranks;
    group->rank =
        static_cast<int>(std::find(job_ranks.begin(), job_ranks.end(), rank_) - job_ranks.begin());
    group_ = std::move(group);
    joined_[context] = job_ranks;
  }

  int rank_;
  SimulatedWire* wire_ = nullptr;
  std::shared_ptr<Endpoint> endpoint_;
  std::shared_ptr<Group> group_;
  std::unique_ptr<ReformOperation> operation_;
  std::shared_ptr<Survivors> survivors_;
  std::map<uint64_t, std::vector<int>> joined_;  // all communicators so far, by context
};

// Returns the broken promise, or "".
std::string RunSchedule(unsigned seed) {
  std::mt19937 random(seed);
  const auto draw = [&](int below) {
    return static_cast<int>(random() % static_cast<unsigned>(below));
  };
  const int size = 2 + draw(6);
  int deaths = 1 + draw(size - 1);
  Network network(size);
  std::vector<std::unique_ptr<FakeRank>> ranks;
  for (int r = 0; r < size; ++r) ranks.push_back(std::make_unique<FakeRank>(network, r, size));
  std::set<int> dead;
  std::map<uint64_t, std::vector<int>> joined;
  const auto settled = [&] {
    if (deaths > 0) return false;
    for (int r = 0; r < size; ++r) {
      if (dead.count(r) != 0) continue;
      const FakeRank& rank = *ranks[static_cast<size_t>(r)];
      if (rank.busy() || rank.ranks().size() != static_cast<size_t>(size) - dead.size())
        return false;
    }
    return true;
  };
  for (int step = 0; !settled(); ++step) {
    if (step == 200'000) return "the ranks do not come to an end";
    const int r = draw(size), other = draw(size);
    if (dead.count(r) != 0 || r == other) continue;
    FakeRank& rank = *ranks[static_cast<size_t>(r)];
    switch (draw(8)) {
      case 0:
        if (deaths == 0 || draw(30) != 0) break;
        --deaths;
        dead.insert(r);
        // Of the last messages to each rank, the first ones still arrive.
        for (int to = 0; to < size; ++to) {
          auto& link = network.Link(r, to);
          if (!link.empty())
            link.resize(static_cast<size_t>(draw(static_cast<int>(link.size()) + 1)));
        }
        break;
      case 1:
        // The end of a rank is known after its last message has come.
        if (dead.count(other) != 0 && network.Link(other, r).empty() && !rank.wire().knows(other))
          rank.wire().Lose(other);
        break;
      case 2:
      case 3:
      case 4:
        if (!network.Link(other, r).empty()) rank.wire().Arrive(other);
        break;
      default: rank.Advance();
    }
    for (const auto& [context, members] : rank.joined()) {
      const auto [known, added] = joined.emplace(context, members);
      if (!added && known->second != members) return "two communicators have one number";
      if (std::find(members.begin(), members.end(), r) == members.end())
        return "a rank is in a communicator without itself";
    }
  }
  uint64_t context = 0;
  for (int r = 0; r < size; ++r) {
    if (dead.count(r) != 0) continue;
    const uint64_t own = ranks[static_cast<size_t>(r)]->context();
    if (context != 0 && context != own) return "the ranks end in different communicators";
    context = own;
  }
  return "";
}

TEST_CASE("the ranks that are left come to one communicator in ten thousand random schedules") {
  for (unsigned seed = 1; seed <= 10'000; ++seed) {
    CAPTURE(seed);
    REQUIRE(RunSchedule(seed) == "");
  }
}

}  // namespace
