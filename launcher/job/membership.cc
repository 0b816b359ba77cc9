#include "launcher/job/membership.h"

#include <algorithm>

namespace dtrun::launcher {

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
