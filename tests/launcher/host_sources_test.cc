#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "launcher/hosts/cluster_environment.h"
#include "launcher/plan/job_options.h"
#include "tests/launcher/surroundings.h"

namespace dtrun::launcher {
namespace {

using Catch::Matchers::Contains;
using Hosts = std::vector<Host>;
using Names = std::vector<std::string>;

const Texts kAllocation = {{"SLURM_JOB_NODELIST", "n[1-2]"}, {"SLURM_TASKS_PER_NODE", "4(x2)"}};
constexpr char kTfConfig[] = R"({"cluster": {"worker": ["w1:1", "w1:2", "w2:1"]}})";

Hosts HostsOf(const Names& line, const Texts& files = {}, const Texts& variables = {}) {
  const Surroundings surroundings = Around(files, variables);
  return FindHosts(ReadRequest(line, surroundings).options, surroundings);
}

TEST_CASE("hosts given by the user override those of an allocation") {
  CHECK(HostsOf({"-H", "a:2", "p"}, {}, kAllocation) == Hosts{{"a", 2, 0, ""}});
  CHECK(
      HostsOf({"--hostfile", "f", "p"}, {{"f", "b slots=3"}}, kAllocation) ==
      Hosts{{"b", 3, 0, "f:1"}});
  CHECK(
      HostsOf({"--config", "c", "p"}, {{"c", "hosts: [a:1, b:2]"}}, kAllocation) ==
      Hosts{{"a", 1, 0, ""}, {"b", 2, 0, ""}});
}

TEST_CASE("without hosts from the user the hosts come from TF_CONFIG or else from Slurm") {
  CHECK(
      HostsOf({"p"}, {}, kAllocation) ==
      Hosts{{"n1", 4, 0, "SLURM_JOB_NODELIST"}, {"n2", 4, 0, "SLURM_JOB_NODELIST"}});
  Texts both = kAllocation;
  both["TF_CONFIG"] = kTfConfig;
  CHECK(HostsOf({"p"}, {}, both) == Hosts{{"w1", 2, 0, "TF_CONFIG"}, {"w2", 1, 0, "TF_CONFIG"}});
}

TEST_CASE(
    "hosts of PBS and LSF come from a file with a line for each slot, or from names and slots") {
  const auto two = [](const std::string& origin) {
    return Hosts{{"n1", 2, 0, origin}, {"n2", 1, 0, origin}};
  };
  const Texts files = {{"/nodes", "n1\nn2\r\n\nn1\n"}};
  CHECK(HostsOf({"p"}, files, {{"PBS_NODEFILE", "/nodes"}}) == two("PBS_NODEFILE"));
  CHECK(
      HostsOf({"p"}, files, {{"LSB_DJOB_HOSTFILE", "/nodes"}, {"LSB_MCPU_HOSTS", "n9 9"}}) ==
      two("LSB_DJOB_HOSTFILE"));
  CHECK(HostsOf({"p"}, {}, {{"LSB_MCPU_HOSTS", "n1 2 n2 1 "}}) == two("LSB_MCPU_HOSTS"));
}

TEST_CASE("hosts of Grid Engine may come in several queues") {
  CHECK(
      HostsOf(
          {"p"}, {{"/pe", "n1 2 all.q@n1 UNDEFINED\nn2 1 all.q@n2 0,1\nn1 3 big.q@n1 <NULL>\n"}},
          {{"PE_HOSTFILE", "/pe"}}) ==
      Hosts{{"n1", 5, 0, "PE_HOSTFILE"}, {"n2", 1, 0, "PE_HOSTFILE"}});
}

TEST_CASE("a host file that the environment names to an mpirun is a source of hosts") {
  const auto [name, text] = GENERATE(table<std::string, std::string>({
      {"OMPI_MCA_orte_default_hostfile", "pi-worker-0.pi.ns.svc slots=2\n"},
      {"PRTE_MCA_prte_default_hostfile", "pi-worker-0.pi.ns.svc slots=2\n"},
      {"HYDRA_HOST_FILE", "pi-worker-0.pi.ns.svc:2\n"},
      {"I_MPI_HYDRA_HOST_FILE", "pi-worker-0.pi.ns.svc:2\n"},
  }));
  CAPTURE(name);
  CHECK(
      HostsOf({"p"}, {{"/hosts", text}}, {{name, "/hosts"}}) ==
      Hosts{{"pi-worker-0.pi.ns.svc", 2, 0, "/hosts:1"}});
  CHECK(
      HostsOf({"-np", "1", "p"}, {}, {{name, "/hosts"}, {"DTRUN_JOB", "1f"}}) ==
      Hosts{{"localhost", 1, 0, "this host"}});
}

TEST_CASE("dtrun waits for hosts by itself only in a launcher pod of Kubernetes' MPI operator") {
  const auto wait = [](const Names& line, const Texts& variables) {
    return ReadRequest(line, Around({}, variables)).options.host_wait_s;
  };
  CHECK(wait({"-np", "1", "p"}, {}) == 0);
  CHECK(wait({"-np", "1", "p"}, {{"K_MPI_JOB_ROLE", "worker"}}) == 0);
  CHECK(wait({"-np", "1", "p"}, {{"K_MPI_JOB_ROLE", "launcher"}}) == 300);
  CHECK(wait({"-np", "1", "--host-wait", "7", "p"}, {{"K_MPI_JOB_ROLE", "launcher"}}) == 7);
}

TEST_CASE("files of schedulers are refused with their variable, the place and the expected form") {
  const auto [variable, text, refusal] = GENERATE(table<std::string, std::string, std::string>({
      {"PBS_NODEFILE", "n1\nn 2\n",
       "PBS_NODEFILE, line 2: found 'n 2', expected the name of a host"},
      {"PBS_NODEFILE", "\n", "PBS_NODEFILE: found no host, expected one host a line"},
      {"PE_HOSTFILE", "n1 x all.q\n", "PE_HOSTFILE, line 1: found x after n1, expected a number"},
      {"PE_HOSTFILE", "n1\n", "PE_HOSTFILE, line 1: found '' after n1, expected a number of slots"},
      {"PE_HOSTFILE", "-x 1 q\n", "PE_HOSTFILE, line 1: found -x, expected the name of a host"},
      {"LSB_DJOB_HOSTFILE", "", "LSB_DJOB_HOSTFILE: found no host"},
  }));
  CAPTURE(variable, text);
  CHECK_THROWS_WITH(HostsOf({"p"}, {{"/file", text}}, {{variable, "/file"}}), Contains(refusal));
  CHECK_THROWS_WITH(HostsOf({"p"}, {}, {{variable, "/missing"}}), Contains(variable + " /missing"));
  CHECK_THROWS_WITH(
      LsfHosts("n1 2 n2"),
      "LSB_MCPU_HOSTS: found '' after n2, expected a number of slots from 1 to 1000000");
}

TEST_CASE("a TF_CONFIG written by an outer dtrun is not a source of hosts") {
  CHECK(
      HostsOf({"-np", "2", "p"}, {}, {{"TF_CONFIG", kTfConfig}, {"DTRUN_JOB", "1f"}}) ==
      Hosts{{"localhost", 2, 0, "this host"}});
}

TEST_CASE("without any source of hosts this host has one slot per rank") {
  CHECK(HostsOf({"-np", "9", "p"}) == Hosts{{"localhost", 9, 0, "this host"}});
  CHECK(
      HostsOf({"-np", "9", "--slots-per-host", "4", "p"}) ==
      Hosts{{"localhost", 4, 0, "this host"}});
  CHECK(HostsOf({"p"}).empty());
}

TEST_CASE("a host without a given number of slots has one or --slots-per-host") {
  CHECK(HostsOf({"-H", "a,b:2", "p"}) == Hosts{{"a", 1}, {"b", 2}});
  CHECK(HostsOf({"-H", "a,b:2", "--slots-per-host", "4", "p"}) == Hosts{{"a", 4}, {"b", 2}});
  CHECK(
      HostsOf({"--hostfile", "f", "--slots-per-host", "4", "p"}, {{"f", "a max_slots=3"}}) ==
      Hosts{{"a", 3, 3, "f:1"}});
  CHECK(
      HostsOf({"p"}, {}, {{"SLURM_JOB_NODELIST", "n1"}}) ==
      Hosts{{"n1", 1, 0, "SLURM_JOB_NODELIST"}});
}

TEST_CASE("node lists of Slurm are expanded") {
  CHECK(ExpandNodeList("n1") == Names{"n1"});
  CHECK(
      ExpandNodeList("n[1-3,7],gpu[08-10]") ==
      Names{"n1", "n2", "n3", "n7", "gpu08", "gpu09", "gpu10"});
  CHECK(ExpandNodeList("r[1-2]n[3,4]-ib") == Names{"r1n3-ib", "r1n4-ib", "r2n3-ib", "r2n4-ib"});
  CHECK(ExpandTaskCounts("2(x3),1") == std::vector<int>{2, 2, 2, 1});
}

TEST_CASE("an invalid node list is refused with the column of the error") {
  const auto [text, column] = GENERATE(table<std::string, std::string>({
      {"", "column 1"},
      {"n[1-3", "column 6"},
      {"n[3-1]", "column 6"},
      {"n[]", "column 3"},
      {"n1,,n2", "column 4"},
      {"n[1-2]x]", "column 8"},
      {"-n1", "column 4"},
      {"n[1-9999999]", "column 12"},
      {"n[1-99999999999]", "column 16"},
      {"a[1-1000]b[1-1000]c[1-1000]", "column 28"},
      {"a b", "column 2"},
  }));
  CAPTURE(text);
  CHECK_THROWS_WITH(ExpandNodeList(text), Contains("SLURM_JOB_NODELIST") && Contains(column));
}

TEST_CASE("task counts that do not match the nodes of an allocation are refused") {
  for (const char* tasks : {"2(x3)", "0(x2)", "2(y2)", "2(x2", "2,", "2(x99999999)"}) {
    CAPTURE(tasks);
    CHECK_THROWS_AS(SlurmHosts("n[1-2]", tasks), UsageError);
  }
}

TEST_CASE("TF_CONFIG gives one slot for each chief and worker") {
  const TfConfig config =
      ReadTfConfig(R"({"cluster": {"worker": ["b:1", "a:2"], "chief": ["a:1"]}, "task": {}})");
  CHECK(config.hosts == Hosts{{"a", 2, 0, "TF_CONFIG"}, {"b", 1, 0, "TF_CONFIG"}});
  CHECK(config.servers == 0);
  CHECK(ReadTfConfig("{}").hosts.empty());
}

TEST_CASE("TF_CONFIG gives parameter servers the first ranks and an evaluator the last") {
  const TfConfig config = ReadTfConfig(
      R"({"cluster": {"worker": ["b:1", "c:1"], "chief": ["a:3"], "ps": ["a:1", "a:2"],
          "evaluator": ["c:2"]}})");
  CHECK(
      config.hosts ==
      Hosts{{"a", 3, 0, "TF_CONFIG"}, {"b", 1, 0, "TF_CONFIG"}, {"c", 2, 0, "TF_CONFIG"}});
  CHECK(config.servers == 2);
  CHECK(config.evaluator);
}

TEST_CASE("the roles of TF_CONFIG become options and may not contradict others") {
  const std::string text =
      R"({"cluster": {"ps": ["a:1"], "worker": ["b:1", "b:2"], "evaluator": ["b:3"]}})";
  const Surroundings surroundings = Around({}, {{"TF_CONFIG", text}});
  const auto options = [&](Names words) {
    words.push_back("program");
    return ReadRequest(words, surroundings).options;
  };
  CHECK(options({}).servers == 1);
  CHECK(options({"--ps", "1", "-np", "4"}).evaluator);
  CHECK(options({"-H", "c:2"}).servers == 0);
  CHECK_THROWS_WITH(
      options({"--ps", "2"}),
      "--ps 2: expected 1, the number of parameter servers in TF_CONFIG, or no --ps");
  CHECK_THROWS_WITH(
      options({"-np", "3"}), "-np 3: expected 4, the number of tasks in TF_CONFIG, or no -np");
}

TEST_CASE("an invalid or unsupported TF_CONFIG is refused") {
  for (const char* text :
       {"", "{", "[]", R"({"cluster": 1})", R"({"cluster": {"worker": "a:1"}})",
        R"({"cluster": {"worker": [1]}})", R"({"cluster": {"worker": ["a;b:1"]}})",
        // No worker, an evaluator without servers, two evaluators; the second server, or the
        // evaluator, shares a host with an earlier task.
        R"({"cluster": {"ps": ["b:1"]}})",
        R"({"cluster": {"worker": ["a:1"], "evaluator": ["b:1"]}})",
        R"({"cluster": {"ps": ["a:1"], "worker": ["a:2"], "evaluator": ["b:1", "c:1"]}})",
        R"({"cluster": {"ps": ["a:1", "b:1"], "worker": ["a:2"]}})",
        R"({"cluster": {"ps": ["a:1"], "worker": ["b:2"], "evaluator": ["a:2"]}})"}) {
    CAPTURE(text);
    CHECK_THROWS_WITH(ReadTfConfig(text), Catch::StartsWith("TF_CONFIG"));
  }
}

// As many brackets as fit into a variable. The JSON library writes nested lists recursively.
TEST_CASE("a TF_CONFIG with deeply nested brackets is refused in a short line") {
  const std::string text =
      R"({"cluster": {"worker": [)" + std::string(65'000, '[') + std::string(65'000, ']') + "]}}";
  CHECK_THROWS_WITH(
      ReadTfConfig(text), "TF_CONFIG: cluster.worker holds an array, expected \"host:port\"");
}

}  // namespace
}  // namespace dtrun::launcher
