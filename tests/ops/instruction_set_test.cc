// The choice of the instruction set for reductions, and the conformance of the collectives with
// each instruction set of this CPU.

#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/process.h"
#include "base/text.h"
#include "dtrun/error.h"
#include "ops/backends/backends.h"
#include "ops/engine/progress_engine.h"
#include "ops/reduce/reduce.h"
#include "ops/shm/shm_communicator.h"
#include "tests/conformance/ops_ranks.h"
#include "tests/conformance/suite.h"
#include "tests/support/thread_ranks.h"

namespace {

using dtrun::Buffer;
using dtrun::ops::Bootstrap;
using dtrun::ops::ChooseInstructionSet;
using dtrun::ops::Communicator;
using dtrun::ops::Engine;
using dtrun::ops::InstructionSet;
using dtrun::ops::InstructionSetsHere;
using dtrun::ops::ReduceInstructionSet;
using dtrun::ops::UseInstructionSet;
using dtrun::testing::Findings;

const InstructionSet kBaseline = {"baseline", nullptr}, kAvx2 = {"avx2", nullptr},
                     kAvx512 = {"avx512", nullptr};

// The instruction set or the error of each rank, if all ranks ask for `wanted`. Each rank has its
// own CPU.
std::vector<std::string> ChooseOnRanks(
    const std::string& wanted, const std::vector<std::vector<InstructionSet>>& cpus) {
  std::vector<std::string> chosen(cpus.size());
  const auto errors =
      dtrun::testing::RunRanks(static_cast<int>(cpus.size()), [&](Bootstrap& bootstrap) {
        const auto rank = static_cast<size_t>(bootstrap.rank());
        chosen[rank] = ChooseInstructionSet(wanted, cpus[rank], &bootstrap).name;
      });
  for (size_t rank = 0; rank < chosen.size(); ++rank) {
    if (!errors[rank].empty()) chosen[rank] = errors[rank];
  }
  return chosen;
}

TEST_CASE("auto chooses the best instruction set of each CPU") {
  CHECK(
      ChooseOnRanks("auto", {{kAvx512, kAvx2, kBaseline}, {kAvx2, kBaseline}}) ==
      std::vector<std::string>{"avx512", "avx2"});
  CHECK(ChooseInstructionSet("auto", {kAvx2, kBaseline}, nullptr).name == std::string("avx2"));
}

TEST_CASE("an instruction set that all CPUs have can be chosen by name") {
  CHECK(
      ChooseOnRanks("avx2", {{kAvx512, kAvx2, kBaseline}, {kAvx2, kBaseline}}) ==
      std::vector<std::string>{"avx2", "avx2"});
  CHECK(
      ChooseInstructionSet("baseline", {kAvx2, kBaseline}, nullptr).name ==
      std::string("baseline"));
}

TEST_CASE("an instruction set that one CPU lacks is refused on all ranks") {
  const std::string refusal =
      "reduce_isa is 'avx512', which the CPU of rank 1 lacks (found avx2, baseline); expected "
      "auto, or an instruction set that the CPUs of all ranks have";
  CHECK(
      ChooseOnRanks("avx512", {{kAvx512, kAvx2, kBaseline}, {kAvx2, kBaseline}, {kBaseline}}) ==
      std::vector<std::string>{refusal, refusal, refusal});
  std::string alone;
  try {
    ChooseInstructionSet("avx2", {kBaseline}, nullptr);
  } catch (const dtrun::Error& error) {
    CHECK(error.code() == dtrun::ErrorCode::kInvalidArgument);
    alone = error.what();
  }
  CHECK(
      alone ==
      "reduce_isa is 'avx2', which this CPU lacks (found baseline); expected auto, or an "
      "instruction set that the CPUs of all ranks have");
}

// --- each instruction set -----------------------------------------------------------------------

// Runs `check` on ranks that share memory and reduce with `set`.
void OnRanks(
    const InstructionSet& set, int size, const std::function<void(Communicator& world)>& check) {
  UseInstructionSet(set);
  REQUIRE(ReduceInstructionSet() == std::string(set.name));
  const dtrun::base::SteadyClock clock;
  const auto errors = dtrun::testing::RunRanks(size, [&](Bootstrap& bootstrap) {
    Engine engine(
        {.timeout = std::chrono::seconds(30), .may_spin = false}, clock, [](auto, const auto&) {});
    check(*dtrun::ops::CreateShmCommunicator(
        bootstrap, engine, dtrun::ops::Members::World(bootstrap.size())));
  });
  UseInstructionSet(InstructionSetsHere().front());
  CHECK(errors == std::vector<std::string>(static_cast<size_t>(size)));
}

void NameThoseLeftOut() {
  std::vector<std::string> here;
  for (const InstructionSet& set : InstructionSetsHere()) here.push_back(set.name);
  for (const char* name : {"avx512", "avx2"}) {
    if (std::find(here.begin(), here.end(), name) == here.end())
      WARN(name << " is left out: this CPU has " << dtrun::base::Join(here, ", "));
  }
}

TEST_CASE("all-reduces and all other kinds conform with every instruction set") {
  NameThoseLeftOut();
  for (const InstructionSet& set : InstructionSetsHere()) {
    for (const int size : {2, 3}) {
      INFO(set.name << ", " << size << " ranks");
      std::vector<Findings> findings(static_cast<size_t>(size));
      OnRanks(set, size, [&](Communicator& world) {
        Findings& found = findings[static_cast<size_t>(world.rank())];
        const auto ranks = dtrun::testing::OverOps(world);
        dtrun::testing::CheckEveryKind(*ranks, found);
        dtrun::testing::CheckRandomOperations(*ranks, found, 31, 500, true);
        dtrun::testing::CheckSameBits(*ranks, found);
      });
      for (const Findings& found : findings) {
        CHECK(found.checks > 0);
        CHECK(found.texts == std::vector<std::string>());
      }
    }
  }
}

// The sums of `size` ranks that need rounding, one after the other, from rank 0.
std::vector<float> SumsOf(const InstructionSet& set, int size) {
  std::vector<float> sums;
  OnRanks(set, size, [&](Communicator& world) {
    for (const size_t count : {1, 7, 63, 65, 1023, 4097, 100'003}) {
      std::vector<float> values(count);
      for (size_t i = 0; i < count; ++i)
        values[i] = 1.0f / static_cast<float>(3 * i + 1 + static_cast<size_t>(world.rank()));
      world.AllReduce(Buffer(values.data(), count), dtrun::ReduceOp::kSum);
      if (world.rank() == 0) sums.insert(sums.end(), values.begin(), values.end());
    }
  });
  return sums;
}

TEST_CASE("sums with rounding and odd sizes have the same bits with every instruction set") {
  for (const int size : {2, 3}) {
    const std::vector<float> best = SumsOf(InstructionSetsHere().front(), size);
    for (const InstructionSet& set : InstructionSetsHere()) {
      INFO(set.name << ", " << size << " ranks");
      const std::vector<float> sums = SumsOf(set, size);
      REQUIRE(sums.size() == best.size());
      CHECK(std::memcmp(sums.data(), best.data(), best.size() * sizeof(float)) == 0);
    }
  }
}

}  // namespace
