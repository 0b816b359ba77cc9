#include <signal.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "launcher/protocol/exit_record.h"
#include "launcher/report/failure_report.h"
#include "tests/support/json.h"

namespace dtrun::launcher {
namespace {

using testing::ParseJson;
using Hints = std::vector<std::string>;

ExitRecord KilledBy(int signal, EndFacts facts) {
  return {.rank = 1, .end = RankEnd::kSignaled, .value = signal, .facts = std::move(facts)};
}

constexpr char kBadAlloc[] =
    "terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc";

TEST_CASE("the hint about lack of memory needs SIGKILL and a kill counted by the kernel") {
  const EndFacts counted = {.oom_kills = 1, .memory_cgroup = "/job", .memory_limit = 64 << 20};
  CHECK(
      HintsOf(KilledBy(SIGKILL, counted), "") ==
      Hints{"the kernel killed the rank for lack of memory: memory cgroup /job, limited to 64 MiB, "
            "counts 1 such kill since the rank started"});
  CHECK(HintsOf(KilledBy(SIGKILL, {.memory_cgroup = "/job"}), "").empty());
  CHECK(HintsOf(KilledBy(SIGSEGV, counted), "").empty());
}

TEST_CASE("the hint about the address space limit needs a program that ran out of memory") {
  const ExitRecord limited = KilledBy(SIGABRT, {.address_limit = 3 << 29});
  CHECK(
      HintsOf(limited, kBadAlloc) ==
      Hints{
          "the rank ran out of memory: its address space was limited to 1.5 GiB (RLIMIT_AS: ulimit "
          "-v or prlimit --as)"});
  CHECK(HintsOf(limited, "no such layer").empty());
  CHECK(HintsOf(KilledBy(SIGABRT, {}), kBadAlloc).empty());
}

TEST_CASE("the hint about a full disk needs a matching error message and a full file system") {
  const std::string lines = "write: No space left on device";
  const EndFacts full = {.space = {{"/tmp", 0}, {"/data", 4096}}};
  CHECK(HintsOf(KilledBy(SIGABRT, full), lines) == Hints{"the file system of /tmp is full"});
  const EndFacts both = {.space = {{"/tmp", 0}, {"/data", 0}}};
  CHECK(
      HintsOf(KilledBy(SIGABRT, both), lines) ==
      Hints{"the file systems of /tmp and /data are full"});
  CHECK(HintsOf(KilledBy(SIGABRT, full), "").empty());
  CHECK(HintsOf(KilledBy(SIGABRT, {.space = {{"/tmp", 1}}}), lines).empty());
}

TEST_CASE("the hint about SIGBUS lists the free space") {
  const Hints hints =
      HintsOf(KilledBy(SIGBUS, {.space = {{"/tmp", 5 << 20}, {"/dev/shm", 0}}}), "");
  REQUIRE(hints.size() == 1);
  CHECK_THAT(hints[0], Catch::EndsWith("; free: 5 MiB in /tmp, 0 bytes in /dev/shm"));
}

TEST_CASE("a number of bytes is shown in the largest fitting unit") {
  CHECK(BytesInWords(0) == "0 bytes");
  CHECK(BytesInWords(1) == "1 byte");
  CHECK(BytesInWords(1023) == "1023 bytes");
  CHECK(BytesInWords(1536) == "1.5 KiB");
  CHECK(BytesInWords(int64_t{64} << 40) == "64 TiB");
}

TEST_CASE("the memory cgroup of version 1 is preferred to that of version 2") {
  bool unified = false;
  CHECK(MemoryCgroupIn("9:cpu,cpuacct:/a\n4:hugetlb,memory:/b:c\n0::/d\n", &unified) == "/b:c");
  CHECK_FALSE(unified);
  CHECK(MemoryCgroupIn("0::/user.slice\n", &unified) == "/user.slice");
  CHECK(unified);
  CHECK(MemoryCgroupIn("", &unified) == "");
  CHECK(MemoryCgroupIn("garbage\n1:\n", &unified) == "");
}

TEST_CASE("the address space limit is the soft limit") {
  const std::string name = "Max address space         ";
  CHECK(AddressLimitIn("Max cpu time  5 6 seconds\n" + name + "1024   2048   bytes\n") == 1024);
  CHECK(AddressLimitIn(name + "unlimited   unlimited   bytes\n") == 0);
  CHECK(AddressLimitIn(name) == 0);
  CHECK(AddressLimitIn("") == 0);
}

TEST_CASE("facts survive the transfer as JSON and malformed facts count as unknown") {
  const EndFacts facts = {
      .oom_kills = 2,
      .memory_cgroup = "/m",
      .memory_limit = 3,
      .address_limit = 4,
      .space = {{"/tmp", 5}}};
  CHECK(EndFactsOf(JsonOf(facts)) == facts);
  CHECK(EndFactsOf(ParseJson(R"([1])")) == EndFacts());
  CHECK(EndFactsOf(ParseJson(R"({"oom_kills": "x", "space": {"a": 1}})")) == EndFacts());
}

// As many brackets as fit into a message from an agent. The JSON library copies nested lists
// recursively.
TEST_CASE("facts with deeply nested brackets count as unknown") {
  const std::string brackets = std::string(500'000, '[') + std::string(500'000, ']');
  CHECK(EndFactsOf(ParseJson(R"({"space": )" + brackets + "}")) == EndFacts());
}

TEST_CASE("a file system is listed once with its first folder") {
  const auto space = FreeSpaceOf({"/nonexistent", "/dev/shm", "/dev/shm/."});
  REQUIRE(space.size() == 1);
  CHECK(space[0].folder == "/dev/shm");
}

TEST_CASE("a cgroup counts only the kills since the program started") {
  EndFacts facts;
  MemoryCgroup::Of(getpid()).AddTo(facts);
  CHECK(facts.oom_kills == 0);
  MemoryCgroup::Of(-1).AddTo(facts);
  CHECK(facts.oom_kills == 0);
}

}  // namespace
}  // namespace dtrun::launcher
