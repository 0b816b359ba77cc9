#include "launcher/system_file.h"

#include <catch2/catch.hpp>

namespace dtrun::launcher {
namespace {

TEST_CASE("a file that the system opens but does not let read is empty, and no error") {
  // Nothing is mapped at its beginning. The files of a process that ends meanwhile are the same.
  CHECK(ReadFileOfSystem("/proc/self/mem") == "");
}

TEST_CASE("a file of the system is read whole, and one that is not there is told apart") {
  CHECK(ReadFileOfSystem("/proc/self/comm") == "plan_test\n");
  CHECK_FALSE(ReadFileOfSystem("/proc/self/no-such-file"));
}

}  // namespace
}  // namespace dtrun::launcher
