// The tree of agents: its levels, the way of frames, and how many frames an agent gets. The
// simulation has the Relay of each agent, links with a delay, and a clock of its own.

#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "launcher/agent/relay.h"
#include "launcher/protocol/agent_link.h"
#include "launcher/protocol/frame.h"

namespace dtrun::launcher {
namespace {

using nlohmann::json;
using std::chrono::microseconds;
using std::chrono::milliseconds;

std::vector<int> Numbers(int count) {
  std::vector<int> numbers(static_cast<size_t>(count));
  std::iota(numbers.begin(), numbers.end(), 0);
  return numbers;
}

TEST_CASE("items are dealt to branches in order") {
  const auto branches = DealToBranches(Numbers(7), 3);
  REQUIRE(branches.size() == 3);
  CHECK(branches[0].head == 0);
  CHECK(branches[0].below == std::vector<int>{3, 6});
  CHECK(branches[1].below == std::vector<int>{4});
  CHECK(branches[2].below == std::vector<int>{5});
  CHECK(DealToBranches(Numbers(7), 0).size() == 7);
  CHECK(DealToBranches(Numbers(0), 3).empty());
}

TEST_CASE("every host has its place in a tree, and no process starts more agents than the fanout") {
  const int hosts = GENERATE(1, 2, 3, 7, 32, 33, 100, 1000, 10'000);
  const size_t fanout = GENERATE(1u, 2u, 32u);
  if (fanout == 1 && hosts > 1000) return;  // a chain
  const AgentTree tree(Numbers(hosts), fanout);
  std::map<int, size_t> started;
  for (int host = 0; host < hosts; ++host) {
    ++started[tree.above(host)];
    const std::vector<int> below = tree.below(host);
    const bool in_order = below.empty() || *std::min_element(below.begin(), below.end()) > host;
    if (!in_order || tree.above(host) >= host) FAIL("host " << host << " is above a lower one");
  }
  for (const auto& [above, count] : started)
    if (count > fanout) FAIL("host " << above << " starts " << count);
  size_t of_heads = 0;
  for (int host = 0; host < hosts; ++host)
    if (tree.above(host) < 0) of_heads += 1 + tree.below(host).size();
  CHECK(of_heads == static_cast<size_t>(hosts));
}

TEST_CASE("a host that dtrun has started itself keeps the hosts below it") {
  AgentTree tree(Numbers(15), 2);
  REQUIRE(tree.above(6) == 2);
  REQUIRE(tree.below(2) == std::vector<int>{6, 10, 14});
  REQUIRE(tree.below(4) == std::vector<int>{8, 12});
  CHECK(tree.Route(12, {FrameType::kNotice}).to == 0);
  tree.Detach(4);
  CHECK(tree.above(4) == -1);
  CHECK(tree.below(4) == std::vector<int>{8, 12});
  CHECK(tree.below(0) == std::vector<int>{2, 6, 10, 14});
  const auto routed = tree.Route(12, {FrameType::kNotice, 7});
  CHECK(routed.to == 4);
  CHECK(routed.frame.type == FrameType::kVia);
  CHECK(FramesIn(routed.frame.body) == std::vector<Frame>{{FrameType::kNotice, 7}});
}

TEST_CASE("without a fanout, and for hosts that are not of the tree, frames go straight") {
  const AgentTree flat(Numbers(50), 0), tree({1, 3}, 1);
  CHECK(flat.Route(49, {FrameType::kNotice}).to == 49);
  CHECK(tree.Route(2, {FrameType::kNotice}).to == 2);
  CHECK(tree.Route(99, {FrameType::kNotice}).frame == Frame{FrameType::kNotice});
  CHECK(tree.above(3) == 1);
}

// ---- The simulation -----------------------------------------------------------------------------

class TreeSimulation {
 public:
  static constexpr size_t kFanout = 32;
  static constexpr microseconds kLinkDelay{200}, kStart{150'000};  // ssh and the agent

  explicit TreeSimulation(int hosts) : tree_(Numbers(hosts), kFanout) {
    received_.resize(static_cast<size_t>(hosts));
    for (int host = 0; host < hosts; ++host)
      if (tree_.above(host) < 0) {
        heads_.emplace(host, Connect(host, [this](const Frame& frame) { HearHead(frame); }));
        heads_.at(host)->Send({FrameType::kJob, -1, JobOf(host).dump()});
      }
    Run();
  }

  // Sends a frame to all agents. Returns how long it takes until all answers have come.
  microseconds AskAll(FrameType type) {
    const microseconds begin = now_;
    for (const auto& [host, link] : heads_)
      link->Send({FrameType::kAll, -1, Encode({type, -1, "{}"})});
    Run();
    return now_ - begin;
  }
  // A rank of `host` fails. Returns when dtrun knows.
  microseconds Fail(int host) {
    const microseconds begin = now_ += std::chrono::seconds(1);
    agents_.at(host)->Say({FrameType::kEnded, host, std::string(300, ' ')});
    Run();
    return last_heard_ - begin;
  }

  std::map<FrameType, std::set<int>> heard;  // by dtrun: the hosts
  size_t of_dtrun() const { return received_by_dtrun_; }
  size_t most_of_agents() const { return *std::max_element(received_.begin(), received_.end()); }
  void ForgetCounts() {
    received_by_dtrun_ = 0;
    std::fill(received_.begin(), received_.end(), 0);
  }

 private:
  // The connection to a simulated agent, or back from it.
  struct Link final : AgentLink {
    explicit Link(std::function<void(const Frame&)> function) : send(std::move(function)) {}
    void Send(const Frame& frame) override { send(frame); }
    void SetPaused(bool) override {}
    void Look() override {}
    std::function<void(const Frame&)> send;
  };

  struct Agent {
    Agent(TreeSimulation& of, OnFrame to)
        : world(of),
          up(std::move(to)),
          relay(
              [this](const std::vector<std::string>& words, OnFrame on_frame, OnLinkEnd) {
                return world.Connect(std::stoi(words.at(words.size() - 2)), std::move(on_frame));
              },
              [this](const Frame& frame) { Say(frame); }) {}

    void Say(const Frame& frame) {
      world.At(kLinkDelay, [this, frame] { up(frame); });
    }
    void Obey(const Frame& frame) {
      relay.Pass(frame);
      if (frame.type == FrameType::kAll)
        for (const Frame& inner : FramesIn(frame.body)) Obey(inner);
      if (frame.type == FrameType::kJob) {
        Say({FrameType::kReady, -1, std::string(600, ' ')});
        relay.Start(json::parse(frame.body));
      }
      if (frame.type == FrameType::kPing) Say({FrameType::kPong});
      if (frame.type == FrameType::kEnd) Say({FrameType::kDone});
    }
    // An agent does this after each wait.
    void Turn() {
      const milliseconds due = relay.Flush(Relay::Time(std::chrono::seconds(1)) + world.now_);
      if (due.count() >= 0) world.At(due, [this] { Turn(); });
    }

    TreeSimulation& world;
    OnFrame up;
    Relay relay;
  };

  std::unique_ptr<AgentLink> Connect(int host, OnFrame up) {
    const microseconds there = now_ + kStart;
    const int above = tree_.above(host);
    agents_[host] = std::make_unique<Agent>(*this, [this, above, up](const Frame& frame) {
      if (above >= 0) ++received_[static_cast<size_t>(above)];
      up(frame);
      if (above >= 0) agents_.at(above)->Turn();
    });
    return std::make_unique<Link>([this, host, there](const Frame& frame) {
      At(std::max(kLinkDelay, there - now_), [this, host, frame] {
        ++received_[static_cast<size_t>(host)];
        agents_.at(host)->Obey(frame);
        agents_.at(host)->Turn();
      });
    });
  }

  json JobOf(int host) const {
    json hosts = json::array();
    for (const int below : tree_.below(host))
      hosts.push_back(
          {{"host", below}, {"name", std::to_string(below)}, {"first", below}, {"count", 1}});
    return {
        {"host", host},
        {"below", {{"words", {"ssh"}}, {"agent", "a"}, {"fanout", kFanout}, {"hosts", hosts}}}};
  }

  void HearHead(const Frame& frame) {
    ++received_by_dtrun_;
    last_heard_ = now_;
    if (frame.type != FrameType::kBundle) return;
    for (const Frame& via : FramesIn(frame.body))
      for (const Frame& inner : FramesIn(via.body)) heard[inner.type].insert(via.rank);
  }

  void At(microseconds delay, std::function<void()> event) {
    events_.emplace(now_ + delay, std::move(event));
  }
  void Run() {
    while (!events_.empty()) {
      auto next = events_.extract(events_.begin());
      now_ = next.key();
      next.mapped()();
    }
  }

  AgentTree tree_;
  microseconds now_{0}, last_heard_{0};
  std::multimap<microseconds, std::function<void()>> events_;
  std::map<int, std::unique_ptr<Agent>> agents_;
  std::map<int, std::unique_ptr<AgentLink>> heads_;
  std::vector<size_t> received_;  // frames, by agent
  size_t received_by_dtrun_ = 0;
};

TEST_CASE("an agent of a large tree gets no more frames than one of a small tree") {
  const int hosts = GENERATE(1'000, 10'000);
  TreeSimulation job(hosts);
  const auto below = static_cast<size_t>(hosts) - TreeSimulation::kFanout;
  CHECK(job.heard[FrameType::kReady].size() == below);
  // A start: two levels more are two times more at most.
  CHECK(job.of_dtrun() <= 8 * TreeSimulation::kFanout);
  CHECK(job.most_of_agents() <= 8 * TreeSimulation::kFanout);

  job.ForgetCounts();
  CHECK(job.AskAll(FrameType::kPing) < milliseconds(50));
  CHECK(job.heard[FrameType::kPong].size() == below);
  CHECK(job.of_dtrun() <= 5 * TreeSimulation::kFanout);
  CHECK(job.most_of_agents() <= 5 * TreeSimulation::kFanout);

  job.ForgetCounts();
  CHECK(job.Fail(hosts - 1) < milliseconds(2));
  CHECK(job.heard[FrameType::kEnded] == std::set<int>{hosts - 1});
  CHECK(job.of_dtrun() == 1);

  job.ForgetCounts();
  job.AskAll(FrameType::kEnd);
  CHECK(job.heard[FrameType::kDone].size() == below);
  CHECK(job.of_dtrun() <= 5 * TreeSimulation::kFanout);
}

}  // namespace
}  // namespace dtrun::launcher
