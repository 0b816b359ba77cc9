#include <algorithm>
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "base/text.h"
#include "launcher/cli/option_settings.h"
#include "tests/launcher/surroundings.h"

namespace dtrun::launcher {
namespace {

using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;
using Words = std::vector<std::string>;

Options FromConfig(const std::string& text, Words more = {}, const Texts& variables = {}) {
  Words line = {"--config", "job.yaml"};
  line.insert(line.end(), more.begin(), more.end());
  line.push_back("./train");
  return OptionsOf(line, {{"job.yaml", text}}, variables);
}

std::string Printed(const Words& line, const Texts& files, const Texts& variables) {
  const Surroundings surroundings = Around(files, variables);
  const Request request = ReadRequest(line, surroundings);
  return PrintedConfig(request.settings, request.options, FindHosts(request.options, surroundings));
}

TEST_CASE("a configuration file can set the options of the command line") {
  const Options options = FromConfig(
      "# the job\n"
      "np: 4\n"
      "hosts: [node1:2, node2:2]\n"
      "env: [A, B]\n"
      "verbose: true\n"
      "bind: core\n"
      "bucket-mb: 8\n"
      "mpi-args: --mca btl 'self,tcp'\n");
  CHECK(options.ranks == 4);
  CHECK(options.hosts == std::vector<Host>{{"node1", 2}, {"node2", 2}});
  CHECK(options.exported == Words{"A", "B"});
  CHECK(options.verbose);
  CHECK(options.bind == Bind::kCore);
  CHECK(options.knobs == base::Environment{{"DTRUN_BUCKET_BYTES", "8388608"}});
  CHECK(options.mpi_args == Words{"--mca", "btl", "self,tcp"});
}

TEST_CASE("an empty configuration file sets no option") {
  CHECK(FromConfig("", {"-np", "1"}).ranks == 1);
  CHECK(FromConfig("# only words\n", {"-np", "1"}).ranks == 1);
}

TEST_CASE("the command line overrides the configuration file which overrides the environment") {
  const Texts variables = {{"DTRUN_BACKEND", "mpi"}, {"DTRUN_ON_STALL", "abort"}};
  const Options options =
      FromConfig("np: 4\nbackend: shm\nhosts: a:4\nenv: [A]\n", {"-np", "2", "-x", "B"}, variables);
  CHECK(options.ranks == 2);
  CHECK(options.exported == Words{"B"});
  CHECK(options.knobs == base::Environment{{"DTRUN_BACKEND", "shm"}, {"DTRUN_ON_STALL", "abort"}});
}

TEST_CASE("hosts on the command line replace a host file from the configuration file") {
  const Options options = FromConfig("hostfile: f\n", {"-H", "a:1"});
  CHECK(options.hostfile.empty());
  CHECK(options.hosts == std::vector<Host>{{"a", 1}});
}

TEST_CASE("an error in a configuration file is reported with its line and column") {
  const auto [text, place, message] = GENERATE(table<std::string, std::string, std::string>({
      {"np: 4\nnpp: 2\n", "job.yaml:2:1:", "unknown key npp; did you mean np?"},
      {"frobnicate: 2\n", "job.yaml:1:1:", "unknown key frobnicate"},
      {"np: 4\nhosts: a\nnp: 5\n", "job.yaml:3:1:", "np is set twice"},
      {"np: four\n", "job.yaml:1:5:", "np four: expected a whole number"},
      {"np: [4]\n", "job.yaml:1:5:", "np: expected one value, found a list"},
      {"hosts: {a: 2}\n", "job.yaml:1:8:", "expected a value or a list of values, found a map"},
      {"np:\n", "job.yaml:1:", "found nothing"},
      {"hosts: []\n", "job.yaml:1:8:", "the list is empty"},
      {"hosts: [[a]]\n", "job.yaml:1:9:", "expected a value in the list"},
      {"hosts: [a:1, b:x]\n", "job.yaml:1:8:", "item b:x (column 5)"},
      {"verbose: yes\n", "job.yaml:1:10:", "expected true or false"},
      {"backend: nccl\n", "job.yaml:1:10:", "expected auto, shm, hierarchical, tcp, ucx or mpi"},
      {"dry-run: true\n", "job.yaml:1:1:", "belongs on the command line"},
      {"config: other\n", "job.yaml:1:1:", "belongs on the command line"},
      {"- np\n", "job.yaml:1:1:", "expected a map"},
      {"np: 4\n--- \nnp: 5\n", "job.yaml:1:5:", "one YAML document"},
      {"np: 4\n]\nverbose: true\n", "job.yaml:", ""},
      {",N(tx3)ionE1", "job.yaml:1:1:", ""},
      {"np: [4\n", "job.yaml:", "invalid YAML"},
      {"np: 4\n\tverbose: true\n", "job.yaml:2:", "invalid YAML"},
      {"hosts: a:1\nhostfile: f\n", "job.yaml:1:8: hosts and job.yaml:2:11: hostfile", "give one"},
  }));
  CAPTURE(text);
  CHECK_THROWS_WITH(
      FromConfig(text, {"--slots-per-host", "1"}), StartsWith(place) && Contains(message));
}

TEST_CASE("an invalid environment variable is refused by name") {
  CHECK_THROWS_WITH(
      OptionsOf({"-np", "1", "p"}, {}, {{"DTRUN_BUCKET_BYTES", "4MB"}}),
      "environment variable DTRUN_BUCKET_BYTES 4MB: expected auto or a number of bytes from 1 "
      "to 1099511627776");
}

TEST_CASE("--print-config shows every value with its source") {
  const std::string text = Printed(
      {"--print-config", "--config", "c", "-np", "3", "--stall-timeout", "20"},
      {{"c", "bind: core\nhostfile: h\n"}, {"h", "a slots=2\nb slots=2\n"}},
      {{"DTRUN_BUCKET_BYTES", "1048576"}, {"DTRUN_AUTOTUNE", "on"}});
  CHECK_THAT(text, Contains("autotune: true  # DTRUN_AUTOTUNE\n"));
  CHECK_THAT(text, Contains("autotune-wire: false  # default\n"));
  CHECK_THAT(text, Contains("np: 3  # command line, -np\n"));
  CHECK_THAT(text, Contains("hosts: 'a:2,b:2'  # h:1\n"));
  CHECK_THAT(text, Contains("bind: core  # c:1:7: bind\n"));
  CHECK_THAT(text, Contains("bucket-mb: 1  # DTRUN_BUCKET_BYTES\n"));
  CHECK_THAT(text, Contains("backend: auto  # default\n"));
  CHECK_THAT(text, Contains("stall-warning: 20  # default\n"));
  CHECK_THAT(text, Contains("# timeout:  # not set\n"));
}

TEST_CASE("the output of --print-config is a configuration file with the same values") {
  const Words line = {
      "--print-config",
      "-np",
      "3",
      "-H",
      "a:2,[::1]:1",
      "--mpi-args",
      "--mca x 'y z' # it''s",
      "-x",
      "A",
      "-x",
      "B",
      "--verbose",
      "--bucket-mb",
      "0.1",
      "--autotune",
      "--autotune-log",
      "l"};
  const std::string text = Printed(line, {}, {});
  const Request again = ReadRequest({"--config", "c", "p"}, Around({{"c", text}}));
  const Options options = OptionsOf(line);
  CHECK(again.options.hosts == options.hosts);
  CHECK(again.options.mpi_args == options.mpi_args);
  CHECK(again.options.exported == options.exported);
  for (const auto& knob : options.knobs)
    CHECK(std::count(again.options.knobs.begin(), again.options.knobs.end(), knob) == 1);
}

}  // namespace
}  // namespace dtrun::launcher
