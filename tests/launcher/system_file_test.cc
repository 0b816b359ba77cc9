#include <unistd.h>

#include <catch2/catch.hpp>
#include <string>

#include "launcher/support/host_system.h"

namespace dtrun::launcher {
namespace {

TEST_CASE("a file of the system is read whole, zeros included") {
  const auto line = ReadFileOfSystem("/proc/self/cmdline");
  REQUIRE(line);
  CHECK(line->back() == '\0');
  CHECK(ReadFileOfSystem("/proc/self/maps")->size() > 4096);  // one read gives less
}

TEST_CASE("what cannot be opened or read is nothing, and no exception") {
  CHECK_FALSE(ReadFileOfSystem("/proc/self/no-such-file"));
  CHECK_FALSE(ReadFileOfSystem("/proc/self"));  // opens, but the read fails
}

}  // namespace
}  // namespace dtrun::launcher
