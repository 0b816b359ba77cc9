#include "launcher/cli/command_line.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "base/options.h"
#include "tests/launcher/surroundings.h"

namespace dtrun::launcher {
namespace {

using Catch::Matchers::Contains;
using Words = std::vector<std::string>;

TEST_CASE("the command line gives the ranks and the hosts and the program") {
  const Options options = OptionsOf({"-np", "64", "-H", "a:60,b:4", "./train"});
  CHECK(options.action == Action::kRun);
  CHECK(options.ranks == 64);
  CHECK(options.hosts == std::vector<Host>{{"a", 60}, {"b", 4}});
  CHECK(options.program == Words{"./train"});
}

TEST_CASE("an option may have its value attached") {
  const Options options = OptionsOf({"--np=2", "-Ha:3", "-xHOME", "-env=B", "p"});
  CHECK(options.ranks == 2);
  CHECK(options.hosts == OptionsOf({"--hosts=a:3", "p"}).hosts);
  CHECK(options.exported == Words{"HOME", "B"});
  CHECK(OptionsOf({"-np=2", "-H", "[::1]", "p"}).hosts == std::vector<Host>{{"[::1]", 0}});
}

TEST_CASE("dtrun accepts the option names of Horovod and mpirun") {
  const Options options =
      OptionsOf({"--num-proc", "2", "-hostfile", "hosts", "--fusion-threshold-mb", "0.5", "p"});
  CHECK(options.ranks == 2);
  CHECK(options.hostfile == "hosts");
  CHECK(options.knobs == base::Environment{{"DTRUN_BUCKET_BYTES", "524288"}});
  CHECK(OptionsOf({"-machinefile", "m", "p"}).hostfile == "m");
}

TEST_CASE("-x may be repeated and takes only one name each time") {
  const Options options = OptionsOf({"-x", "A", "-np", "1", "-x", "B_2", "prog", "-x", "C"});
  CHECK(options.exported == Words{"A", "B_2"});
  CHECK(options.program == Words{"prog", "-x", "C"});
}

TEST_CASE("all words after the program belong to the program") {
  const Words program = {"./train", "--help", "-H", "b:1", "--", "", "-np", "7", "--version"};
  Words line = {"-np", "2"};
  line.insert(line.end(), program.begin(), program.end());
  CHECK(OptionsOf(line).program == program);
}

TEST_CASE("two dashes may precede the program") {
  CHECK(OptionsOf({"-np", "2", "--", "./train", "--", "x"}).program == Words{"./train", "--", "x"});
  CHECK(OptionsOf({"-np", "2", "--", "--odd-name"}).program == Words{"--odd-name"});
}

TEST_CASE("--mpi-args is split into words even if its value begins with a dash") {
  CHECK(
      OptionsOf({"-np", "1", "--mpi-args", "--mca btl 'self,tcp'", "p"}).mpi_args ==
      Words{"--mca", "btl", "self,tcp"});
  CHECK(
      OptionsOf({"-np", "8", "--mpi-args=--oversubscribe", "p"}).mpi_args ==
      Words{"--oversubscribe"});
}

TEST_CASE("help and version need no other option") {
  CHECK(OptionsOf({"--help"}).action == Action::kHelp);
  CHECK(OptionsOf({"-h"}).action == Action::kHelp);
  CHECK(OptionsOf({"--version"}).action == Action::kVersion);
  CHECK(OptionsOf({"--print-config"}).action == Action::kPrintConfig);
  CHECK(OptionsOf({"--dry-run", "-np", "1", "p"}).action == Action::kDryRun);
  CHECK(OptionsOf({"--dry-run", "--version"}).action == Action::kVersion);
}

TEST_CASE("an invalid number of ranks is refused with the expected range") {
  const std::string value =
      GENERATE(as<std::string>(), "0", "-1", "x", "2.5", "99999999999", "2 ", "0x2");
  CHECK_THROWS_WITH(
      OptionsOf({"-np", value, "p"}),
      Contains("-np " + (value == "2 " ? "'2 '" : value)) && Contains("from 1 to 1000000"));
}

TEST_CASE("an invalid value is refused with the option and the value and the expected form") {
  const auto [option, value, expected] = GENERATE(table<std::string, std::string, std::string>({
      {"--bind", "cpu", "auto|none|core|socket|numa"},
      {"--launcher", "slurm", "mpirun|local|srun|qrsh|ssh|hydra"},
      {"--threads", "0", "from 1 to 1000000"},
      {"--timeout", "1h", "whole number"},
      {"--host-timeout", "1", "from 4 to"},
      {"--ssh-port", "65536", "from 1 to 65535"},
      {"--ssh-identity", "my key", "no spaces"},
      {"--bucket-mb", "0", "MiB"},
      {"--bucket-mb", "nan", "MiB"},
      {"--bucket-mb", "2000000", "MiB"},
      {"--backend", "nccl", "auto, shm, hierarchical, tcp, ucx or mpi"},
      {"--stall-timeout", "0", "a number of seconds from 1"},
      {"--on-stall", "wait", "error or abort"},
      {"--log-level", "debug", "error, warning or info"},
      {"--env", "A=b", "a name without a value"},
      {"--env", "a.b", "letters, digits"},
      {"--env-deny", "A|B", "a pattern"},
      {"--network-interfaces", "10.0.0.0/33", "such as 10.1.0.0/16"},
      {"--mpi-args", "'x", "a closing quote"},
  }));
  CAPTURE(option, value);
  CHECK_THROWS_WITH(
      OptionsOf({"-np", "1", option, value, "p"}),
      Catch::StartsWith(option + " ") && Contains(value.substr(0, 2)) && Contains(expected));
}

TEST_CASE("a stall warning later than the stall timeout is refused") {
  CHECK_THROWS_WITH(
      OptionsOf({"-np", "1", "--stall-warning", "9", "--stall-timeout", "5", "p"}),
      Contains("9") && Contains("5") && Contains("expected a warning no later"));
}

TEST_CASE("every option of the library is an option of dtrun") {
  for (const auto& [name, value] : base::OptionValues({})) {
    const auto& table = OptionTable();
    CAPTURE(name);
    CHECK(std::any_of(table.begin(), table.end(), [&name = name](const OptionRow& row) {
      return row.knob == name;
    }));
  }
}

TEST_CASE("an unknown option is refused and a similar option is suggested") {
  CHECK_THROWS_WITH(OptionsOf({"--nmp", "2", "p"}), Contains("did you mean -np?"));
  CHECK_THROWS_WITH(OptionsOf({"--dryrun", "p"}), Contains("did you mean --dry-run?"));
  CHECK_THROWS_WITH(OptionsOf({"--host-file", "x", "p"}), Contains("did you mean --hostfile?"));
  CHECK_THROWS_WITH(
      OptionsOf({"--frobnicate", "p"}), Contains("--frobnicate") && !Contains("did you mean"));
}

TEST_CASE("an option given twice is refused by name") {
  CHECK_THROWS_WITH(OptionsOf({"-np", "2", "-np", "3", "p"}), "-np is given twice");
  CHECK_THROWS_WITH(OptionsOf({"-H", "a", "--hosts", "b", "p"}), "--hosts is given twice");
  CHECK_THROWS_WITH(
      OptionsOf({"-H", "a", "--hostfile", "b", "p"}),
      "--hosts and --hostfile both name hosts; give one of them");
}

TEST_CASE("an incomplete or malformed command line is refused") {
  const Words line = GENERATE(
      Words{"-np", "2"}, Words{"-np"}, Words{"-np", "", "p"}, Words{"-np=", "2", "p"}, Words{"-H"},
      Words{"-np", "2", "--"}, Words{"-np", "2", "--flight-record"},
      Words{"--verbose=1", "-np", "2", "p"}, Words{"-np", "1", "--json", "-", "p"}, Words{"-q"});
  CAPTURE(line);
  CHECK_THROWS_AS(OptionsOf(line), UsageError);
}

TEST_CASE("options of other launchers are accepted or refused with dtrun's alternative") {
  CHECK(OptionsOf({"-n", "3", "p"}).ranks == 3);
  CHECK(OptionsOf({"-n4", "p"}).ranks == 4);
  CHECK(OptionsOf({"-np4", "p"}).ranks == 4);
  CHECK(OptionsOf({"-np", "1", "--timeline-filename", "t", "p"}).timeline == "t");
  CHECK(OptionsOf({"-np", "1", "-v", "p"}).verbose);
  CHECK(OptionsOf({"-V"}).action == Action::kVersion);
  CHECK(OptionsOf({"help"}).action == Action::kHelp);
  CHECK(OptionsOf({"--help-all"}).action == Action::kHelpAll);
  CHECK_THROWS_WITH(OptionsOf({"-n", "1", "-np", "2", "p"}), "-np is given twice");
  CHECK_THROWS_WITH(
      OptionsOf({"--gloo", "-np", "2", "p"}),
      "unknown option --gloo; --launcher local starts the ranks of one host without MPI");
  CHECK(OptionsOf({"--min-num-proc=2", "-np", "4", "p"}).min_ranks == 2);
  CHECK_THROWS_WITH(OptionsOf({"--reset-limit=2", "p"}), Contains("--restarts N"));
  CHECK_THROWS_WITH(OptionsOf({}), Contains("dtrun --help lists the options"));
}

TEST_CASE("the full help lists the options by group in the spelling that users type") {
  CHECK_THAT(
      HelpText(true), Contains("\n  -np,") && Contains("\nTime limits:\n") && !Contains(" --np") &&
                          Contains("\n\nKnobs of the library:\n") &&
                          Contains("--flight-record FILE"));
}

}  // namespace
}  // namespace dtrun::launcher
