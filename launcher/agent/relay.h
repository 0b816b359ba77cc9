#ifndef DTRUN_LAUNCHER_AGENT_RELAY_H_
#define DTRUN_LAUNCHER_AGENT_RELAY_H_

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "launcher/protocol/agent_link.h"
#include "launcher/protocol/frame.h"

namespace dtrun::launcher {

/// The agents that an agent has started on other hosts. Passes dtrun's frames on to them, and their
/// frames up to dtrun, many in one.
class Relay {
 public:
  using Time = std::chrono::steady_clock::time_point;

  /// The shortest time between two bundles.
  static constexpr std::chrono::milliseconds kBetweenBundles{5};

  /// `start` starts an agent; `up` sends a frame to the process that has started this agent.
  Relay(StartAgent start, OnFrame up) : start_(std::move(start)), up_(std::move(up)) {}

  /// Starts the agents of the hosts in `job` (the body of kJob), as its "below" says. They get the
  /// same job.
  void Start(const nlohmann::json& job);
  /// Passes a kVia or kAll frame on.
  void Pass(const Frame& frame);
  /// Sends up the frames that have come, if the last bundle was kBetweenBundles ago. Returns the
  /// time until it may send the rest; negative: there is no rest.
  std::chrono::milliseconds Flush(Time now);
  /// Whether no agent runs that this agent has started.
  bool empty() const { return agents_.empty(); }
  void SetPaused(bool paused);
  /// AgentLink::Look.
  void Look();

 private:
  void Hear(int host, const Frame& frame);
  void Add(const std::string& frames);
  void SendBundle();

  StartAgent start_;
  OnFrame up_;
  std::map<int, std::unique_ptr<AgentLink>> agents_;  // by host
  std::string bundle_;
  Time sent_ = {};
};

}  // namespace dtrun::launcher

#endif
