#include "runtime/job/topology.h"

#include <catch2/catch.hpp>

namespace {

using dtrun::runtime::PlaceByHostList;
using dtrun::runtime::PlaceByLeaders;
using dtrun::runtime::Placement;
using dtrun::runtime::TopologyOf;
using Ints = std::vector<int>;

Ints Of(const Placement& placement, int32_t dtrun::Topology::*field) {
  Ints values;
  for (int rank = 0; rank < static_cast<int>(placement.host_of_rank.size()); ++rank) {
    values.push_back(TopologyOf(placement, rank).*field);
  }
  return values;
}

TEST_CASE("on equal hosts the local and cross ranks form a grid") {
  const Placement placement = PlaceByHostList({{"w0", 2}, {"w1", 2}});
  CHECK(Of(placement, &dtrun::Topology::local_rank) == Ints{0, 1, 0, 1});
  CHECK(Of(placement, &dtrun::Topology::local_size) == Ints{2, 2, 2, 2});
  CHECK(Of(placement, &dtrun::Topology::cross_rank) == Ints{0, 0, 1, 1});
  CHECK(Of(placement, &dtrun::Topology::cross_size) == Ints{2, 2, 2, 2});
}

TEST_CASE("on unequal hosts a rank without a counterpart crosses alone") {
  const Placement placement = PlaceByHostList({{"w0", 1}, {"w1", 2}});
  CHECK(Of(placement, &dtrun::Topology::local_rank) == Ints{0, 0, 1});
  CHECK(Of(placement, &dtrun::Topology::cross_rank) == Ints{0, 1, 0});
  CHECK(Of(placement, &dtrun::Topology::cross_size) == Ints{2, 2, 1});
}

TEST_CASE("ranks that MPI deals to hosts in turn are placed by the leaders of their hosts") {
  const Placement placement = PlaceByLeaders({0, 1, 0, 1}, {"a", "b", "a", "b"});
  CHECK(placement.hosts == std::vector<dtrun::base::HostSlots>{{"a", 2}, {"b", 2}});
  CHECK(Of(placement, &dtrun::Topology::local_rank) == Ints{0, 0, 1, 1});
  CHECK(Of(placement, &dtrun::Topology::cross_rank) == Ints{0, 1, 0, 1});
}

TEST_CASE("two hosts with the same name stay two hosts") {
  CHECK(PlaceByLeaders({0, 1}, {"node", "node"}).hosts.size() == 2);
}

TEST_CASE("the CPUs of a host are the union of the CPUs of its ranks") {
  CHECK(dtrun::runtime::CountUnion({"1", "01", "0110"}) == 3);
  CHECK(dtrun::runtime::CountUnion({dtrun::runtime::AllowedCpus()}) >= 1);
}

}  // namespace
