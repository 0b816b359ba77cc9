#include "launcher/support/quoting.h"

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "launcher/support/launch_error.h"
#include "tests/support/subprocess.h"

namespace dtrun::launcher {
namespace {

using Words = std::vector<std::string>;

const Words kDifficult = {"",      "a b",  "$(id)", "x'y\"z",   "n\nl",  "*",   "--",
                          "`id`",  "\\n",  "\t",    "\x01",     "!",     "~",   "#",
                          "a=b c", "'\n'", ":",     "\xc3\xa9", "{a,b}", "$'x'"};

TEST_CASE("bash reads quoted words back as they were") {
  std::string expected;
  for (const std::string& word : kDifficult) expected += "<" + word + ">";
  const auto result = testing::Run({{"bash", "-c", "printf '<%s>' " + ShellLine(kDifficult)}});
  CHECK(result.out == expected);
}

TEST_CASE("a quoted line has no line break") {
  CHECK(ShellLine(kDifficult).find('\n') == std::string::npos);
}

TEST_CASE("plain words stay readable") {
  CHECK(ShellLine({"mpirun", "-H", "h1:2,h2:2", "./train"}) == "mpirun -H h1:2,h2:2 ./train");
}

TEST_CASE("words are divided at spaces outside quotes") {
  CHECK(SplitWords("").empty());
  CHECK(SplitWords("  a   b\t") == Words{"a", "b"});
  CHECK(SplitWords("a 'b c' \"d e\"f '' g\\ h") == Words{"a", "b c", "d ef", "", "g h"});
  CHECK(SplitWords("$HOME *") == Words{"$HOME", "*"});
  CHECK_THROWS_AS(SplitWords("a 'b"), UsageError);
}

}  // namespace
}  // namespace dtrun::launcher
