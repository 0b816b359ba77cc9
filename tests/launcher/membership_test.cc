#include <catch2/catch.hpp>

#include "launcher/job/elastic_hosts.h"

namespace dtrun::launcher {
namespace {

using SlotList = std::vector<base::HostSlots>;

TEST_CASE("ranks of one host follow each other, and hosts follow their lowest launch number") {
  Membership places({{"h1", 2}, {"h2", 2}});
  places.LoseHost(0);
  CHECK(places.Homeless() == std::set<int>{0, 1});
  places.Seat(0, 1, "h2");
  places.Seat(1, 2, "h3");
  CHECK(places.Homeless().empty());
  const Membership::Layout layout = places.LayoutOf(places.members());
  CHECK(layout.hosts == SlotList{{"h2", 3}, {"h3", 1}});
  CHECK(layout.members == std::vector<int>{0, 2, 3, 1});
  CHECK(layout.first_host == 1);
}

TEST_CASE("messages name the host of a lost rank until its next host is settled") {
  Membership places({{"h1", 1}, {"h2", 1}});
  places.LoseHost(0);
  places.Seat(0, 2, "h3");
  CHECK(places.Names() == SlotList{{"h1", 1}, {"h2", 1}});
  places.Settle(0);
  CHECK(places.Names() == SlotList{{"h3", 1}, {"h2", 1}});
}

TEST_CASE("a vacant launch number is used again unless its process may still run") {
  Membership places({{"h1", 3}});
  CHECK(places.Vacant() == 3);
  places.LoseHost(0);
  places.SetMembers({0});
  CHECK(places.Vacant() == 1);
  places.Seat(1, 1, "h2");
  CHECK(places.Joiners() == std::set<int>{1});
  places.Retire(1);
  CHECK(places.Joiners().empty());
  CHECK(places.Vacant() == 2);
}

}  // namespace
}  // namespace dtrun::launcher
