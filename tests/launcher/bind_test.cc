#include <algorithm>
#include <catch2/catch.hpp>
#include <optional>
#include <string>
#include <vector>

#include "launcher/networks/network_choice.h"
#include "launcher/plan/cpu_binding.h"
#include "launcher/support/launch_error.h"

namespace dtrun::launcher {
namespace {

// Two sockets, each a NUMA node, of two cores with two hardware threads.
const std::vector<Cpu> kMachine = {{0, 0, 0, 0}, {4, 0, 0, 0}, {1, 1, 0, 0}, {5, 1, 0, 0},
                                   {2, 0, 1, 1}, {6, 0, 1, 1}, {3, 1, 1, 1}, {7, 1, 1, 1}};

CpuPlan Bound(Bind bind, int local_rank, int local_size, std::optional<double> quota = {}) {
  return BindCpus(kMachine, quota, bind, local_rank, local_size);
}

TEST_CASE("bound to cores, a rank has whole cores of its own") {
  CHECK(Bound(Bind::kCore, 0, 4) == CpuPlan{{0, 4}, 2, false});
  CHECK(Bound(Bind::kCore, 3, 4) == CpuPlan{{3, 7}, 2, false});
  CHECK(Bound(Bind::kCore, 0, 1) == CpuPlan{{0, 4, 1, 5, 2, 6, 3, 7}, 8, false});
  CHECK(Bound(Bind::kCore, 2, 3) == CpuPlan{{2, 6, 3, 7}, 4, false});
}

TEST_CASE("more ranks than cores cannot be bound to cores") {
  CHECK_THROWS_WITH(
      Bound(Bind::kCore, 0, 5),
      "--bind core: the host has 5 ranks, but only 4 cores that they may use");
}

TEST_CASE("bound to sockets or NUMA nodes, neighbours share one") {
  const Bind bind = GENERATE(Bind::kSocket, Bind::kNuma);
  CHECK(Bound(bind, 1, 4) == CpuPlan{{0, 4, 1, 5}, 2, false});
  CHECK(Bound(bind, 2, 4) == CpuPlan{{2, 6, 3, 7}, 2, false});
  CHECK(Bound(bind, 1, 2) == CpuPlan{{2, 6, 3, 7}, 4, false});
  CHECK(Bound(bind, 9, 10) == CpuPlan{{2, 6, 3, 7}, 1, true});
}

TEST_CASE("bound to nothing, ranks use all CPUs and share the threads") {
  CHECK(Bound(Bind::kNone, 1, 2) == CpuPlan{{}, 4, false});
}

TEST_CASE("a quota bounds the threads of bound ranks") {
  CHECK(Bound(Bind::kSocket, 0, 2, 4.0) == CpuPlan{{0, 4, 1, 5}, 2, false});
  CHECK(Bound(Bind::kCore, 0, 4, 1.0) == CpuPlan{{0, 4}, 1, false});
}

TEST_CASE("lists of CPUs are short") {
  CHECK(CpuList({}) == "");
  CHECK(CpuList({3}) == "3");
  CHECK(CpuList({4, 0, 1, 5, 2, 8}) == "0-2,4-5,8");
}

TEST_CASE("what is no interface and no network is refused") {
  for (const char* text :
       {"", "eth0,", "10.1.0.0/", "10.1/16", "10.1.0.0/0", "a b", "-x", "fd00::/8"})
    CHECK_THROWS_AS(ParseNetworks(text), UsageError);
}

}  // namespace
}  // namespace dtrun::launcher
