#include "launcher/options.h"

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "launcher/launch_error.h"

namespace dtrun::launcher {
namespace {

using Catch::Matchers::Contains;
using Words = std::vector<std::string>;

TEST_CASE("-np ranks run on this host when no hosts are given") {
  const Options options = ParseCommandLine({"-np", "64", "./train"});
  CHECK(options.action == Action::kRun);
  CHECK(options.ranks == 64);
  CHECK(options.hosts == std::vector<base::HostSlots>{{"localhost", 64}});
  CHECK(options.program == Words{"./train"});
}

TEST_CASE("hosts alone say how many ranks there are") {
  CHECK(ParseCommandLine({"-H", "a:2,b:3", "./train"}).ranks == 5);
  CHECK(ParseCommandLine({"-np", "4", "-H", "a:2,b:3", "./train"}).ranks == 4);
}

TEST_CASE("options may be written with their value attached") {
  const Options options = ParseCommandLine({"--np=2", "-Ha:3", "-xHOME", "p"});
  CHECK(options.ranks == 2);
  CHECK(options.hosts == ParseCommandLine({"--hosts=a:3", "p"}).hosts);
  CHECK(options.exported == Words{"HOME"});
}

TEST_CASE("-x may be repeated and never takes the program") {
  const Options options = ParseCommandLine({"-x", "A", "-np", "1", "-x", "B_2", "prog", "-x", "C"});
  CHECK(options.exported == Words{"A", "B_2"});
  CHECK(options.program == Words{"prog", "-x", "C"});
}

TEST_CASE("all that follows the program belongs to it") {
  const Words program = {"./train", "--help", "-H", "b:1", "--", "", "-np", "7", "--version"};
  Words line = {"-np", "2"};
  line.insert(line.end(), program.begin(), program.end());
  CHECK(ParseCommandLine(line).program == program);
}

TEST_CASE("two dashes may stand before the program") {
  CHECK(
      ParseCommandLine({"-np", "2", "--", "./train", "--", "x"}).program ==
      Words{"./train", "--", "x"});
  CHECK(ParseCommandLine({"-np", "2", "--", "--odd-name"}).program == Words{"--odd-name"});
}

TEST_CASE("--mpi-args is divided into words, even when it begins with a dash") {
  CHECK(
      ParseCommandLine({"-np", "1", "--mpi-args", "--mca btl 'self,tcp'", "p"}).mpi_args ==
      Words{"--mca", "btl", "self,tcp"});
}

TEST_CASE("--flight-record names a file") {
  CHECK(ParseCommandLine({"-np", "1", "p"}).flight_record == "");
  CHECK(
      ParseCommandLine({"-np", "1", "--flight-record", "a b.json", "p"}).flight_record ==
      "a b.json");
  CHECK_THAT(HelpText(), Contains("--flight-record FILE"));
}

TEST_CASE("help and version need nothing else") {
  CHECK(ParseCommandLine({"--help"}).action == Action::kHelp);
  CHECK(ParseCommandLine({"-h"}).action == Action::kHelp);
  CHECK(ParseCommandLine({"--version"}).action == Action::kVersion);
  CHECK(ParseCommandLine({"--dry-run", "-np", "1", "p"}).action == Action::kDryRun);
}

TEST_CASE("a wrong number of ranks is shown with what was expected") {
  const std::string value =
      GENERATE(as<std::string>(), "0", "-1", "x", "2.5", "99999999999", "2 ", "0x2");
  CHECK_THROWS_WITH(
      ParseCommandLine({"-np", value, "p"}),
      Contains("-np " + (value == "2 " ? "'2 '" : value)) && Contains("from 1 to 1000000"));
}

TEST_CASE("an unknown option is refused, with the one that was meant") {
  CHECK_THROWS_WITH(ParseCommandLine({"--nmp", "2", "p"}), Contains("did you mean -np?"));
  CHECK_THROWS_WITH(ParseCommandLine({"--dryrun", "p"}), Contains("did you mean --dry-run?"));
  CHECK_THROWS_WITH(
      ParseCommandLine({"--frobnicate", "p"}),
      Contains("--frobnicate") && !Contains("did you mean"));
}

TEST_CASE("an option given twice is named") {
  CHECK_THROWS_WITH(ParseCommandLine({"-np", "2", "-np", "3", "p"}), "-np is given twice");
  CHECK_THROWS_WITH(ParseCommandLine({"-H", "a", "--hosts", "b", "p"}), "--hosts is given twice");
}

TEST_CASE("a command line that says too little or too much is refused") {
  const Words line = GENERATE(
      Words{}, Words{"p"}, Words{"-np", "2"}, Words{"-np"}, Words{"-np", "", "p"}, Words{"-H"},
      Words{"-np", "2", "--"}, Words{"-np", "2", "--flight-record"},
      Words{"--verbose=1", "-np", "2", "p"}, Words{"-np", "1", "-x", "A=b", "p"},
      Words{"-np", "1", "-x", "a.b", "p"}, Words{"-np", "1", "--mpi-args", "'x", "p"});
  CAPTURE(line);
  CHECK_THROWS_AS(ParseCommandLine(line), UsageError);
}

TEST_CASE("the help shows -np as it is typed") {
  CHECK_THAT(HelpText(), Contains("  -np ") && !Contains("--np"));
}

}  // namespace
}  // namespace dtrun::launcher
