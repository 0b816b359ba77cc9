#include "launcher/job/elastic_ranks.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <utility>

#include "base/launch_env.h"
#include "base/text.h"
#include "launcher/engines/launch_engine.h"
#include "launcher/hosts/hosts.h"
#include "launcher/plan/rank_environment.h"
#include "launcher/support/environment.h"
#include "launcher/support/host_system.h"
#include "launcher/support/quoting.h"

namespace dtrun::launcher {
namespace {

using base::Text;

std::vector<std::string> Assignments(const base::Environment& environment) {
  std::vector<std::string> variables;
  for (const auto& [name, value] : environment) variables.push_back(Text(name, '=', value));
  return variables;
}

}  // namespace

ElasticRanks::ElasticRanks(
    Poller& poller, const Options& options, const Plan& plan, HostAgents& agents,
    std::function<void(const std::string&)> say)
    : options_(options),
      plan_(plan),
      agents_(agents),
      say_(std::move(say)),
      recovery_(
          {.restarts = options.restarts,
           .min_ranks = options.min_ranks,
           .start_timeout = std::chrono::seconds(options.start_timeout_s),
           .elastic_timeout = std::chrono::seconds(options.elastic_timeout_s),
           .all_together = plan.call.engine->starts_again()},
          plan.call.placement) {
  pool_.SetHosts(plan.listed);
  if (!options.discovery.empty())
    discovery_.emplace(poller, options.discovery, options.slots_per_host);
}

void ElasticRanks::Begin() {
  agents_.SetAddresses(plan_.addresses);
  const Membership& places = recovery_.places();
  const Membership::Layout layout = places.LayoutOf(places.members());
  launch_ = LaunchOf(layout);
  variables_ = VariablesOf(launch_, layout.first_host);
  if (!plan_.call.engine->starts_again()) agents_.BeginEpoch(0, {}, base::Join(variables_, "\n"));
}

// ---- Hosts --------------------------------------------------------------------------------------

void ElasticRanks::ReplaceLostHosts() {
  while (!agents_.lost().empty() && ReplaceLostHost()) continue;
}

// Without a minimum of ranks, all ranks of the host have to find a place on other hosts.
bool ElasticRanks::ReplaceLostHost() {
  const std::string lost = agents_.lost();
  const auto number = static_cast<int>(agents_.lost_host());
  Membership& places = recovery_.places();
  const std::set<int>& members = places.members();
  const auto needed = std::count_if(
      members.begin(), members.end(), [&](int member) { return places.HostOf(member) == number; });
  int free = 0;
  for (const FreeHost& host : agents_.free_hosts()) free += host.slots;
  if (options_.min_ranks == 0 && free < needed) return false;
  places.LoseHost(number);
  pool_.Failed(agents_.ForgetLostHost(/*also_ended=*/true), Clock::now());
  const std::vector<std::string> takers = SeatRanks();
  say_(Text(
      lost, needed == 0 ? "; the host was a spare"
            : takers.empty()
                ? ""
                : Text("; spare host ", base::Join(takers, ", "), " takes its ranks")));
  return true;
}

// The places that the job would fill if it could.
int ElasticRanks::Wanted() const {
  const Membership& places = recovery_.places();
  const int most = std::max(options_.max_ranks, base::RankCount(plan_.call.placement));
  const auto joiners = static_cast<int>(places.Joiners().size());
  const int more = std::max(0, most - recovery_.ranks() - joiners);
  return more + static_cast<int>(places.Homeless().size());
}

// Puts ranks without a host, and new ones, on free hosts. Returns the names of the hosts.
std::vector<std::string> ElasticRanks::SeatRanks() {
  std::vector<std::string> names;
  Membership& places = recovery_.places();
  int wanted = Wanted();
  for (const FreeHost& host : agents_.free_hosts()) {
    if (wanted > 0) names.push_back(host.name);
    for (int slots = host.slots; slots > 0 && wanted > 0; --slots, --wanted) {
      const std::set<int> homeless = places.Homeless();
      const int number = homeless.empty() ? places.Vacant() : *homeless.begin();
      places.Seat(number, host.number, host.name);
      agents_.Assign(number, host.number);
      changed_ = true;
    }
  }
  return names;
}

void ElasticRanks::LookForHosts() {
  const Clock::time_point now = Clock::now();
  for (const auto& [name, why] : agents_.TakeRefusals()) {
    if (refused_.insert(name).second) say_(Text(why, "; the job goes on without the host"));
    pool_.Failed(name, now);
  }
  if (discovery_) {
    discovery_->Tick(now);
    if (const std::string error = discovery_->TakeError(); !error.empty())
      say_("warning: " + error);
    if (discovery_->hosts()) {
      std::vector<base::HostSlots> hosts;
      for (const Host& host : *discovery_->hosts()) hosts.push_back({host.name, host.slots});
      pool_.SetHosts(std::move(hosts));
      for (const std::string& name : agents_.names())
        if (!pool_.Names(name))
          agents_.Drop(
              name, Text("host ", name, " was lost: --host-discovery-script names it no more"));
    }
  }
  if (options_.min_ranks > 0) AddHosts();
}

void ElasticRanks::AddHosts() {
  int missing = Wanted() - agents_.coming_slots();
  for (const FreeHost& host : agents_.free_hosts()) missing -= host.slots;
  for (const base::HostSlots& host : pool_.Candidates(Clock::now())) {
    if (missing <= 0) break;
    if (agents_.Uses(host.name)) continue;
    agents_.Add(host, OnThisMachine({host}).front());
    missing -= host.slots;
  }
}

// ---- Ranks --------------------------------------------------------------------------------------

std::optional<Verdict> ElasticRanks::Tick() {
  LookForHosts();
  SeatRanks();
  return Recover();
}

std::optional<Verdict> ElasticRanks::Recover() {
  const std::vector<ExitRecord> records = agents_.records();
  Recovery::Orders orders = recovery_.Update(records, MonotonicNs());
  for (const std::string& line : orders.lines) say_(line);
  if (orders.end) return orders.end;
  if (orders.epoch) {
    const Membership& places = recovery_.places();
    launch_.paused = orders.epoch->paused;
    if (launch_.paused) {
      variables_ = VariablesOf(launch_, Membership::kNoHost);
    } else {
      const Membership::Layout layout = places.LayoutOf(places.members());
      launch_ = LaunchOf(layout);
      variables_ = VariablesOf(launch_, layout.first_host);
    }
    if (!plan_.call.engine->starts_again())
      agents_.BeginEpoch(orders.epoch->number, orders.epoch->why, base::Join(variables_, "\n"));
    changed_ = true;
  }
  stop_ = stop_ || orders.stop;
  if (plan_.call.engine->starts_again()) {
    start_ = (start_ && !orders.stop) || !orders.restart.empty();
    return std::nullopt;
  }
  for (const int rank : orders.restart) agents_.Restart(rank, CommandOf(), PlaceOf(rank));
  return std::nullopt;
}

std::optional<Restart> ElasticRanks::TakeStart() {
  if (!std::exchange(start_, false)) return std::nullopt;
  const Membership& places = recovery_.places();
  for (const int member : places.members()) agents_.ExpectStart(member);
  const Membership::Layout layout = places.LayoutOf(places.members());
  launch_ = LaunchOf(layout);
  variables_ = VariablesOf(launch_, layout.first_host);
  Restart start = {.placement = layout.hosts, .variables = variables_};
  for (const std::string& variable :
       Assignments(base::WriteStart(recovery_.epoch(), layout.host_numbers)))
    start.variables.push_back(variable);
  return start;
}

std::vector<base::HostSlots> ElasticRanks::placement() const {
  const Membership& places = recovery_.places();
  return places.LayoutOf(places.members()).hosts;
}

void ElasticRanks::Suspect(int rank) {
  const Membership& places = recovery_.places();
  recovery_.Suspect(places.LayoutOf(places.members()).members.at(static_cast<size_t>(rank)));
}

std::vector<pid_t> ElasticRanks::processes() const {
  return discovery_ && discovery_->process() > 0 ? std::vector{discovery_->process()}
                                                 : std::vector<pid_t>{};
}

base::LaunchEnv ElasticRanks::LaunchOf(const Membership::Layout& layout) const {
  return {.hosts = layout.hosts, .members = layout.members};
}

// The variables that change with the members. `first_host`: of rank 0.
std::vector<std::string> ElasticRanks::VariablesOf(
    const base::LaunchEnv& launch, int first_host) const {
  std::vector<std::string> variables = Assignments(base::WriteMembers(launch));
  if (!plan_.chooses_master_address || first_host == Membership::kNoHost) return variables;
  const std::string& address = agents_.address(first_host);
  const bool alone = plan_.call.only_this_machine || launch.hosts.size() == 1;
  variables.push_back(Text(
      kMasterAddress, '=',
      !address.empty() ? address : AddressOf(agents_.name(first_host), alone)));
  return variables;
}

HostAgents::RankCommand ElasticRanks::CommandOf() const {
  HostAgents::RankCommand command = {.words = {plan_.call.wrapper}, .variables = {}, .folder = ""};
  Append(command.words, MarkWords(plan_.call.program));
  for (const std::string& name : plan_.call.exported)
    if (Has(plan_.environment, name))
      Set(command.variables, name, ValueOf(plan_.environment, name));
  std::error_code ignored;
  command.folder = std::filesystem::current_path(ignored);
  return command;
}

// The variables of a process describe the job with this process as a rank. If it is no member yet,
// it waits in Init until it is.
std::vector<std::string> ElasticRanks::PlaceOf(int rank) const {
  const Membership& places = recovery_.places();
  std::set<int> numbers = places.Joiners();
  for (const int member : places.members())
    if (places.HasHost(member)) numbers.insert(member);
  const Membership::Layout layout = places.LayoutOf(numbers);
  std::vector<std::string> variables = VariablesOf(LaunchOf(layout), layout.first_host);
  for (const std::string& variable : Assignments(base::WritePlace(rank, places.HostOf(rank))))
    variables.push_back(variable);
  return variables;
}

}  // namespace dtrun::launcher
