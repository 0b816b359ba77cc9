// Frames from below are gathered, and sent up as one frame. So each agent of a tree gets few
// frames, however large the tree is: at most one each kBetweenBundles from each agent that it has
// started. Bundles from below become a part of this agent's bundle.

#include "launcher/agent/relay.h"

#include <utility>
#include <vector>

#include "base/json.h"

namespace dtrun::launcher {

using base::JsonText;
using nlohmann::json;

// "below": {"words", "agent", "fanout", "hosts": [{"host", "name", "first", "count"}]}
void Relay::Start(const json& job) {
  if (!job.contains("below")) return;
  const json& below = job.at("below");
  const std::vector<json> hosts = below.at("hosts");
  json of_all = job;
  of_all["below"].erase("hosts");
  of_all["stdin"] = false;  // rank 0 is on no host below another
  for (const Branch<json>& branch : DealToBranches(hosts, below.at("fanout").get<size_t>())) {
    const int host = branch.head.at("host");
    json ranks = json::array();
    for (int i = 0; i < branch.head.at("count"); ++i)
      ranks.push_back(branch.head.at("first").get<int>() + i);
    json its_job = of_all;
    its_job["host"] = host;
    its_job["ranks"] = std::move(ranks);
    its_job["below"]["hosts"] = branch.below;
    std::vector<std::string> words = below.at("words");
    words.push_back(branch.head.at("name"));
    words.push_back(below.at("agent"));
    auto link = start_(
        words, [this, host](const Frame& frame) { Hear(host, frame); },
        [this, host](const LinkEnd& end) {
          const json body = {{"why", end.why}, {"words", end.words}};
          Hear(host, {FrameType::kLostAgent, -1, base::AsciiJsonText(body)});
          agents_.erase(host);
        });
    link->Send({FrameType::kJob, -1, JsonText(its_job)});
    agents_[host] = std::move(link);
  }
}

void Relay::Pass(const Frame& frame) {
  if (frame.type == FrameType::kAll)
    for (const auto& [host, link] : agents_) link->Send(frame);
  if (frame.type != FrameType::kVia) return;
  const auto found = agents_.find(frame.rank);
  if (found == agents_.end()) return;  // dtrun does not know yet that this agent is lost
  for (const Frame& inner : FramesIn(frame.body)) found->second->Send(inner);
}

void Relay::Hear(int host, const Frame& frame) {
  Add(frame.type == FrameType::kBundle ? frame.body
                                       : Encode({FrameType::kVia, host, Encode(frame)}));
}

void Relay::Add(const std::string& frames) {
  if (!bundle_.empty() && bundle_.size() + frames.size() > kMostBody) SendBundle();
  bundle_ += frames;
}

void Relay::SendBundle() { up_({FrameType::kBundle, -1, std::exchange(bundle_, {})}); }

std::chrono::milliseconds Relay::Flush(Time now) {
  using std::chrono::milliseconds;
  if (bundle_.empty()) return milliseconds(-1);
  if (now - sent_ < kBetweenBundles)
    return std::chrono::ceil<milliseconds>(kBetweenBundles - (now - sent_));
  sent_ = now;
  SendBundle();
  return milliseconds(-1);
}

void Relay::SetPaused(bool paused) {
  for (const auto& [host, link] : agents_) link->SetPaused(paused);
}

void Relay::Look() {
  for (const auto& [host, link] : agents_) link->Look();
}

}  // namespace dtrun::launcher
