// The findings and the report of dtrun doctor, from the facts about hosts.

#include "launcher/doctor/doctor.h"

#include <catch2/catch.hpp>

#include "launcher/doctor/diagnosis.h"
#include "launcher/doctor/host_facts.h"
#include "launcher/support/launch_error.h"
#include "tests/launcher/surroundings.h"
#include "tests/support/json.h"

namespace dtrun::launcher {
namespace {

using Catch::Matchers::Contains;
using testing::ParseJson;

HostLook Healthy(const std::string& host) {
  HostLook look = {.host = host, .slots = 2, .address = "10.0.0.2", .answered = true};
  look.facts.installation = {{}, {}, "/usr/bin/mpirun", "mpirun (Open MPI) 4.1.4", true};
  look.facts.program = {"/bin/train", "", std::string(64, 'a'), {}};
  look.facts.cpus = {8, 8, 0, 4, 1, 2};
  look.facts.memory = {int64_t{16} << 30, int64_t{8} << 30, "/tmp", true, int64_t{4} << 30, 0};
  look.facts.interfaces = {
      {"lo", "127.0.0.1", 8, 0, InterfaceKind::kLoopback},
      {"eth0", "10.0.0.2", 24, 25'000, InterfaceKind::kDevice},
      {"docker0", "172.17.0.1", 16, 0, InterfaceKind::kBridge}};
  return look;
}

std::vector<Finding> Findings(const HostLook& look) { return FindingsOf(look, Healthy("here")); }

// Returns the only finding. It stops a job.
Finding Problem(const HostLook& look) {
  const std::vector<Finding> findings = Findings(look);
  REQUIRE(findings.size() == 1);
  CHECK(findings[0].stops_job);
  return findings[0];
}

Finding Warning(const HostLook& look) {
  const std::vector<Finding> findings = Findings(look);
  REQUIRE(findings.size() == 1);
  CHECK_FALSE(findings[0].stops_job);
  return findings[0];
}

TEST_CASE("a host that equals this host has no findings") {
  CHECK(Findings(Healthy("h2")).empty());
}

TEST_CASE("a different or missing Open MPI stops a job") {
  HostLook look = Healthy("h2");
  look.facts.installation.mpirun_version = "mpirun (Open MPI) 4.1.2";
  CHECK(Problem(look).found == "mpirun (Open MPI) 4.1.2");
  CHECK_THAT(Problem(look).expected, Contains("4.1.4 at /usr/bin/mpirun, as here"));
  look.facts.installation.mpirun_version = "mpirun (Open MPI) 3.1";
  CHECK(Problem(look).expected == "mpirun of Open MPI 4 or 5");
  look.facts.installation.mpirun_version = "HYDRA build details:";
  CHECK(Problem(look).expected == "mpirun of Open MPI 4 or 5");
  look.facts.installation.mpirun = "";
  CHECK(Problem(look).found == "no /usr/bin/mpirun");
  look = Healthy("h2");
  look.facts.installation.has_orted = false;
  CHECK_THAT(Problem(look).found, Contains("without orted"));
}

TEST_CASE("if this host has no Open MPI then doctor tells how to install it") {
  HostLook here = Healthy("here");
  here.facts.installation.mpirun = here.facts.installation.mpirun_version = "";
  const std::vector<Finding> findings = FindingsOf(here, here);
  REQUIRE(findings.size() == 1);
  CHECK(findings[0].found == "no mpirun in PATH");
  CHECK_THAT(findings[0].advice, Contains("openmpi-bin"));
}

TEST_CASE("a job without MPI needs neither Open MPI nor its libraries") {
  HostLook look = Healthy("h2");
  look.facts.installation.mpirun = look.facts.installation.mpirun_version = "";
  look.facts.installation.missing_libraries = {"libmpi.so.40 (for /lib/libdtrun_mpi.so)"};
  CHECK(FindingsOf(look, Healthy("here"), false).empty());
  look.facts.installation.missing_libraries = {"libx.so.1 (for /lib/libdtrun.so.0)"};
  CHECK(FindingsOf(look, Healthy("here"), false).size() == 1);
}

TEST_CASE("a program that is missing or different or lacks a library stops a job") {
  HostLook look = Healthy("h2");
  look.facts.program.problem = "/bin/train: No such file or directory";
  look.facts.program.sha256 = "";
  CHECK(Problem(look).found == "/bin/train: No such file or directory");
  CHECK(Problem(look).advice == "scp /bin/train h2:/bin/train");
  look = Healthy("h2");
  look.facts.program.sha256 = std::string(64, 'b');
  CHECK(Problem(look).found == "/bin/train with SHA-256 bbbbbbbbbbbb...");
  CHECK(Problem(look).expected == "aaaaaaaaaaaa..., as here");
  CHECK(Problem(look).advice == "scp /bin/train h2:/bin/train");
  look = Healthy("h2");
  look.facts.program.missing_libraries = {"libx.so.1", "liby.so.2"};
  CHECK(Problem(look).found == "missing: libx.so.1, liby.so.2");
}

TEST_CASE("an incomplete installation stops a job") {
  HostLook look = Healthy("h2");
  look.facts.installation.missing_files = {"dtrun_rank", "dtrun_agent"};
  CHECK(Problem(look).found == "dtrun_rank and dtrun_agent is missing");
  look = Healthy("h2");
  look.facts.installation.missing_libraries = {"libmpi.so.40 (for /lib/libdtrun_mpi.so)"};
  CHECK_THAT(Problem(look).found, Contains("libmpi.so.40"));
}

TEST_CASE("more ranks than CPUs are a warning that names the limit") {
  HostLook look = Healthy("h2");
  look.slots = 9;
  CHECK(Warning(look).found == "8");
  look.facts.cpus.allowed = 4;
  CHECK(Warning(look).found == "4 (cpuset)");
  look.facts.cpus.quota = 1.5;
  CHECK(Warning(look).found == "1.5 (quota of the control group)");
  look.slots = 0;
  CHECK(Findings(look).empty());
}

TEST_CASE("low memory or disk space is a warning and an unwritable folder stops a job") {
  HostLook look = Healthy("h2");
  look.facts.memory.temporary_free_bytes = 5 << 20;
  CHECK(Warning(look).found == "5 MiB free");
  look.facts.memory.temporary_writable = false;
  CHECK(Problem(look).thing == "/tmp");
  look = Healthy("h2");
  look.facts.memory.available_bytes = 100 << 20;
  CHECK(Warning(look).thing == "memory");
}

TEST_CASE("a clock offset of more than one second plus the uncertainty is a warning") {
  HostLook look = Healthy("h2");
  look.clock_offset_s = -1.5;
  look.clock_uncertainty_s = 0.6;
  CHECK(Findings(look).empty());
  look.clock_uncertainty_s = 0.4;
  CHECK(Warning(look).found == "1.5 s behind");
  look.clock_offset_s = 7200;
  CHECK(Warning(look).found == "7.2e+03 s ahead");
}

TEST_CASE("each error from ssh is reported as the step that failed") {
  const auto thing = [](const std::string& complaint, int code) {
    return FailureOf("h2", "/opt/dtrun_probe", complaint, code);
  };
  CHECK(
      thing("Banner\r\nroot@h2: Permission denied (publickey).\r\n", 255) ==
      Finding{
          true, "ssh login", "root@h2: Permission denied (publickey).",
          "a login without a password",
          "ssh-copy-id h2 copies your key to the host; --ssh-identity FILE names another key"});
  CHECK(thing("Host key verification failed.\n", 255).thing == "ssh host key");
  CHECK_THAT(thing("Host key verification failed.\n", 255).advice, Contains("\"ssh h2\""));
  CHECK_THAT(
      thing("ssh: Could not resolve hostname h2: Name or service not known\n", 255).advice,
      Contains("\"ssh h2 true\""));
  CHECK(thing("connect to host h2 port 7: Connection refused\n", 255).thing == "ssh port");
  CHECK(thing("sh: 1: /opt/dtrun_probe: not found\n", 127).thing == "dtrun");
  CHECK_THAT(thing("", 127).expected, Contains("/opt/dtrun_probe"));
  CHECK_THAT(
      thing("x: error while loading shared libraries: libhwloc.so.15: cannot open\n", 127).found,
      Contains("libhwloc.so.15"));
  CHECK(thing("", 255).found == "exit code 255 and no message");
}

TEST_CASE("the table has one line per host and then one line per finding") {
  HostLook bad = Healthy("h2");
  bad.facts.program.problem = "/bin/train:\nno such file";
  HostLook dead = {.host = "a-long-name", .slots = 1, .address = ""};
  dead.reach = {{true, "name", "none", "an address", "see DNS"}};
  HostLook here = Healthy("h1");
  here.address = "";
  std::vector<Diagnosis> hosts;
  for (const HostLook& look : {here, bad, dead}) hosts.push_back({look, FindingsOf(look, here)});
  CHECK_FALSE(AllReady(hosts));
  CHECK(
      DoctorText(hosts, here, "mpirun") ==
      "dtrun 0.1.0, launcher mpirun, /usr/bin/mpirun: mpirun (Open MPI) 4.1.4, program /bin/train: "
      "SHA-256 aaaaaaaaaaaa...\n"
      "\n"
      "HOST         STATE    ADDRESS    CPUS  NUMA  GPUS  NETWORK         FREE MEMORY  FREE TMP  "
      "CLOCK\n"
      "h1           ok       this host  8     2     none  eth0 25 Gbit/s  8.0 GiB      4.0 GiB\n"
      "h2           PROBLEM  10.0.0.2   8     2     none  eth0 25 Gbit/s  8.0 GiB      4.0 GiB   "
      "+0.0 ms +- 0.0\n"
      "a-long-name  PROBLEM\n"
      "\n"
      "PROBLEM h2: program: found /bin/train: no such file; expected a program that can be run, at "
      "the same path on all hosts -> scp /bin/train h2:/bin/train\n"
      "PROBLEM a-long-name: name: found none; expected an address -> see DNS\n"
      "2 of 3 hosts would stop a job: h2, a-long-name\n");
}

TEST_CASE("GPUs are counted by model and shown with their links") {
  HostLook look = Healthy("h1");
  look.facts.gpus = {
      {"H200", int64_t{140} << 30, {"itself", "NVLink"}},
      {"H200", int64_t{140} << 30, {"NVLink", "itself"}}};
  CHECK_THAT(DoctorText({{look, {}}}, look, "mpirun"), Contains("  2 x H200 140 GiB; NVLink  "));
  CHECK_THAT(DoctorText({{look, {}}}, look, "mpirun"), Contains("The host is ready.\n"));
}

TEST_CASE("the JSON holds all facts of a host or null if the host did not answer") {
  const HostLook here = Healthy("h1");
  const HostLook dead = {.host = "h2", .slots = 1, .address = "10.0.0.3"};
  const auto report = ParseJson(DoctorJson({{here, {}}, {dead, {}}}, here, "mpirun"));
  CHECK(report["ready"] == true);
  CHECK(report["hosts"][0]["facts"] == nlohmann::json(here.facts));
  CHECK(report["hosts"][0]["facts"]["interfaces"][2]["kind"] == "bridge");
  CHECK(report["hosts"][1]["facts"].is_null());
}

TEST_CASE("facts survive the conversion to JSON and back") {
  const HostFacts facts = Healthy("h1").facts;
  CHECK(nlohmann::json(nlohmann::json(facts).get<HostFacts>()) == nlohmann::json(facts));
  CHECK_THROWS(ParseJson("{\"host_name\": 3}").get<HostFacts>());
}

TEST_CASE("missing libraries are read from the loader's output") {
  CHECK(MissingIn("\tlibc.so.6 => /lib/libc.so.6 (0x0000)\n\t/lib64/ld.so (0x00)\n").empty());
  CHECK(
      MissingIn("\tlibx.so.1 => not found\n\tlibm.so.6 => /lib/libm.so.6\n\tlibx.so.1 => not "
                "found\n") == std::vector<std::string>{"libx.so.1"});
  CHECK(
      MissingIn("./a: /lib/libm.so.6: version `GLIBC_2.99' not found (required by ./a)\n") ==
      std::vector<std::string>{"libm.so.6 with GLIBC_2.99"});
  CHECK(
      MissingIn("./a: error while loading shared libraries: liby.so: cannot open shared object "
                "file\n") == std::vector<std::string>{"liby.so"});
  CHECK(MissingIn(LibraryList("/bin/sh", "")).empty());
  CHECK_THAT(LibraryList("/bin/sh", ""), Contains("libc.so.6 => "));
  CHECK(LibraryList("/etc/passwd", "") == "");
  CHECK(LibraryList("/no/such/file", "") == "");
  CHECK(
      MpiIn("\tlibmpich.so.12 => /lib/libmpich.so.12 (0x0)\n\tlibmpi.so.40 => not found\n"
            "\tlibmpi_cxx.so.40 => /lib/libmpi_cxx.so.40 (0x0)\n") ==
      std::vector<std::string>{"libmpich.so.12", "libmpi.so.40"});
}

TEST_CASE("doctor takes the options about reaching hosts and refuses all others by name") {
  const auto read = [](const std::vector<std::string>& line) {
    return ReadDoctorRequest(line, Around({{"c.yaml", "np: 4\nhosts: [a:1]\nbucket-mb: 8\n"}}));
  };
  CHECK(read({"-H", "a:2,b:3", "./train", "--epochs"}).options.program.front() == "./train");
  CHECK(read({"--config", "c.yaml"}).options.hosts.front().name == "a");
  CHECK(read({"--start-timeout", "5"}).options.start_timeout_s == 5);
  CHECK(read({"--launcher", "ssh"}).options.engine == FindLaunchEngine("ssh"));
  CHECK(read({"--help"}).help);
  for (const char* option : {"--dry-run", "--oversubscribe", "--verbose", "--print-env"})
    CHECK_THROWS_WITH(read({option}), Contains("doctor does not take " + std::string(option)));
  CHECK_THROWS_WITH(read({"-np", "2"}), Contains("doctor does not take -np"));
  CHECK_THROWS_WITH(
      read({"--nosuch"}), "unknown option --nosuch (dtrun doctor --help lists its options)");
  CHECK_THAT(DoctorHelp(), Contains("-h,--help  ") && Contains("  these options\n"));
}

}  // namespace
}  // namespace dtrun::launcher
