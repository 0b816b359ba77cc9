// A run of the discovery program is a child, whose output the poller reads. Only a run that ends
// well replaces the hosts.

#include "launcher/job/elastic_hosts.h"

#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/text.h"
#include "launcher/job/supervisor.h"
#include "launcher/support/host_system.h"
#include "launcher/support/launch_error.h"

namespace dtrun::launcher {
namespace {

using base::Text;
using std::chrono::milliseconds;

constexpr std::chrono::seconds kBetweenRuns{1}, kLongestRun{20}, kShortestWait{1}, kLongestWait{60};
constexpr size_t kMostOutput = 16 << 20;

int SlotsOf(const std::vector<Host>& hosts) { return static_cast<int>(SlotCount(hosts)); }

}  // namespace

// ---- Hosts --------------------------------------------------------------------------------------

HostDiscovery::HostDiscovery(Poller& poller, std::string program, int slots_per_host)
    : poller_(poller), program_(std::move(program)), slots_per_host_(std::max(slots_per_host, 1)) {}

HostDiscovery::~HostDiscovery() { End(""); }

void HostDiscovery::Tick(std::chrono::steady_clock::time_point now) {
  if (child_) {
    if (now - started_ > kLongestRun)
      End(Text("still ran after ", kLongestRun.count(), " s; dtrun ended it"));
    return;
  }
  if (now - started_ < kBetweenRuns) return;
  started_ = now;
  output_.clear();
  try {
    child_ = StartPiped({program_});
  } catch (const LaunchError& error) {
    error_ = Text("--host-discovery-script ", program_, ": ", error.what());
    return;
  }
  complaints_ = std::make_unique<Complaints>(poller_, child_->complaints);
  poller_.Watch(child_->channel, POLLIN, [this](short) { Read(); });
}

void HostDiscovery::Read() {
  char bytes[4096];
  const ssize_t got = read(child_->channel, bytes, sizeof bytes);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got > 0 && output_.size() < kMostOutput) {
    output_.append(bytes, static_cast<size_t>(got));
    return;
  }
  const std::optional<int> status = AwaitStatus(child_->process, std::chrono::seconds(1));
  if (status != 0) {
    complaints_->Drain();
    const std::string line = complaints_->LastLine();
    const bool is_missing = status && WIFEXITED(*status) && WEXITSTATUS(*status) == 127;
    return End(
        !line.empty() ? "failed: " + line
        : is_missing  ? "cannot be run"
                      : "failed without a message");
  }
  try {
    std::vector<Host> hosts;
    const bool has_hosts = output_.find_first_not_of(" \t\r\n") != std::string::npos;
    if (has_hosts) hosts = ParseHostfile("output", output_);
    for (Host& host : hosts)
      if (host.slots == 0) host.slots = slots_per_host_;
    hosts_ = std::move(hosts);
    End("");
  } catch (const LaunchError& error) {
    End(error.what());
  }
}

void HostDiscovery::End(const std::string& error) {
  if (!child_) return;
  poller_.Forget(child_->channel);
  close(child_->channel);
  complaints_.reset();
  kill(-child_->process, SIGKILL);
  AwaitChild(child_->process, std::chrono::seconds(1));
  child_.reset();
  error_ = error.empty() ? "" : Text("--host-discovery-script ", program_, ": ", error);
}

std::string HostDiscovery::TakeError() {
  return error_ == std::exchange(told_error_, error_) ? "" : error_;
}

std::vector<Host> DiscoverHosts(
    const std::string& program, int slots_per_host, int slots, std::chrono::seconds patience) {
  Poller poller;
  HostDiscovery discovery(poller, program, slots_per_host);
  std::string error;
  const auto begin = std::chrono::steady_clock::now();
  for (auto now = begin; now - begin < patience; now = std::chrono::steady_clock::now()) {
    discovery.Tick(now);
    poller.Wait(milliseconds(100));
    if (const std::string new_error = discovery.TakeError(); !new_error.empty()) error = new_error;
    if (discovery.hosts() && SlotsOf(*discovery.hosts()) >= slots) return *discovery.hosts();
  }
  const std::string found =
      !error.empty() ? error
                     : Text(
                           "--host-discovery-script ", program, ": found ",
                           discovery.hosts() ? SlotsOf(*discovery.hosts()) : 0, " slots");
  throw LaunchError(
      ExitCode::kUnavailable,
      Text(
          found, "; expected at least ", slots, slots == 1 ? " slot" : " slots", " within ",
          patience.count(), " s (--elastic-timeout)"));
}

void HostPool::Failed(const std::string& name, Time now) {
  Wait& wait = waits_[name];
  const auto pause = kShortestWait * (1 << std::min(wait.failures++, 10));
  wait.until = now + std::min(pause, kLongestWait);
}

std::vector<base::HostSlots> HostPool::Candidates(Time now) const {
  std::vector<base::HostSlots> candidates = hosts_;
  std::erase_if(candidates, [&](const base::HostSlots& host) {
    const auto wait = waits_.find(host.name);
    return wait != waits_.end() && now < wait->second.until;
  });
  return candidates;
}

bool HostPool::Names(const std::string& name) const {
  return std::any_of(
      hosts_.begin(), hosts_.end(), [&](const auto& host) { return host.name == name; });
}

// ---- Places of the ranks ------------------------------------------------------------------------

Membership::Membership(const std::vector<base::HostSlots>& hosts) {
  for (size_t host = 0; host < hosts.size(); ++host)
    for (int slot = 0; slot < hosts[host].slots; ++slot) {
      members_.insert(static_cast<int>(places_.size()));
      places_.push_back(
          {.host = static_cast<int>(host), .name = hosts[host].name, .settled = hosts[host].name});
    }
}

int Membership::HostOf(int number) const {
  const auto index = static_cast<size_t>(number);
  return index < places_.size() ? places_[index].host : kNoHost;
}

void Membership::Seat(int number, int host, const std::string& name) {
  const auto index = static_cast<size_t>(number);
  if (index >= places_.size()) places_.resize(index + 1);
  Place& place = places_[index];
  place.host = host;
  place.name = name;
  if (place.settled.empty()) place.settled = name;
}

void Membership::Settle(int number) {
  Place& place = places_[static_cast<size_t>(number)];
  place.settled = place.name;
}

void Membership::Retire(int number) {
  Place& place = places_[static_cast<size_t>(number)];
  place.is_retired = place.host != kNoHost;
  place.host = kNoHost;
}

void Membership::LoseHost(int host) {
  for (Place& place : places_)
    if (place.host == host) place.host = kNoHost;
}

std::set<int> Membership::Homeless() const {
  std::set<int> homeless;
  for (const int member : members_)
    if (!HasHost(member)) homeless.insert(member);
  return homeless;
}

std::set<int> Membership::Joiners() const {
  std::set<int> joiners;
  for (int number = 0; number < static_cast<int>(places_.size()); ++number)
    if (HasHost(number) && !IsMember(number)) joiners.insert(number);
  return joiners;
}

int Membership::Vacant() const {
  int number = 0;
  const auto is_retired = [&] {
    const auto index = static_cast<size_t>(number);
    return index < places_.size() && places_[index].is_retired;
  };
  while (IsMember(number) || HasHost(number) || is_retired()) ++number;
  return number;
}

Membership::Layout Membership::LayoutOf(const std::set<int>& numbers) const {
  std::vector<int> order;  // of the hosts
  std::map<int, std::vector<int>> by_host;
  for (const int number : numbers) {
    std::vector<int>& of_host = by_host[HostOf(number)];
    if (of_host.empty()) order.push_back(HostOf(number));
    of_host.push_back(number);
  }
  Layout layout;
  for (const int host : order) {
    const std::vector<int>& of_host = by_host[host];
    layout.hosts.push_back(
        {places_[static_cast<size_t>(of_host.front())].name, static_cast<int>(of_host.size())});
    layout.members.insert(layout.members.end(), of_host.begin(), of_host.end());
  }
  if (!order.empty()) layout.first_host = order.front();
  layout.host_numbers = std::move(order);
  return layout;
}

std::vector<base::HostSlots> Membership::Names() const {
  std::vector<base::HostSlots> names;
  for (const Place& place : places_) {
    if (names.empty() || names.back().name != place.settled) names.push_back({place.settled, 0});
    ++names.back().slots;
  }
  return names;
}

}  // namespace dtrun::launcher
