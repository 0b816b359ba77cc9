// Lost ranks of several hosts that are started again (--restarts), and jobs that change their size.
// Most jobs run without MPI. ELASTIC_HOST_EVENTS is the number of random events, ELASTIC_SEED
// their seed; DTRUN_TRANSPORT=ucx makes them ride on OpenUCX.

#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/multihost/rig.h"
#include "tests/support/json.h"
#include "tests/support/text.h"

namespace dtrun::testing {
namespace {

// Runs a job of `steps` steps with the options `options` of dtrun on hosts `names`, and `faults`
// meanwhile. The shell of both has the folder $work, the process $job of dtrun and the functions
// await STEP, which returns when the job has come so far, and process RANK.
CommandResult RunOn(
    const std::string& names, int steps, const std::string& options, const std::string& faults,
    const std::string& prepare = "", const std::string& program = "elastic") {
  const std::string script =
      "work=$(mktemp -d /var/tmp/elastic.XXXXXX) && touch $work/slow || exit 1\n"
      "await() {\n"
      "  step=\n"
      "  while kill -0 $job 2>/dev/null && [ \"${step:-0}\" -lt $1 ]; do\n"
      "    sleep 0.02; step=$(cat $work/step 2>/dev/null)\n"
      "  done\n"
      "}\n"
      "process() { cat $work/pid.$1; }\n" +
      prepare + "launcher/dtrun --tag none " +
      (options.find("-np ") == std::string::npos ? "-np 4 " : "") + options + " tests/ranks/" +
      program + " " + std::to_string(steps) + " $work &\njob=$!\n" + faults +
      "\nwait $job; code=$?; rm -rf $work; exit $code\n";
  Command command = ScriptOnHosts(script, {"--names", names});
  command.timeout = std::chrono::minutes(14);
  return Run(command);
}

CommandResult ElasticJob(
    int steps, const std::string& faults, const std::string& options = "",
    const std::string& hosts = "h1:2,h2:2") {
  return RunOn("h1,h2,h3", steps, "--launcher ssh -H " + hosts + " " + options, faults);
}

const std::string& Undisturbed() {
  static const std::string result = ElasticJob(200, ":").out;
  return result;
}

TEST_CASE("a rank that is killed on another host is started again there") {
  if (Skipped()) return;
  CHECK(Undisturbed().find("200 steps, digest ") == 0);
  CHECK(Undisturbed().find("each example 4 times\n") != std::string::npos);
  const std::string rank = GENERATE("0", "3");
  const bool wrapper = GENERATE(false, true);
  const std::string host = rank == "0" ? "h1" : "h2";
  const std::string victim = wrapper ? "$(ssh " + host + " ps -o ppid= $(process " + rank + "))"
                                     : "$(process " + rank + ")";
  const CommandResult result =
      ElasticJob(200, "await 40; ssh " + host + " kill -KILL " + victim, "--restarts 5");
  CAPTURE(rank, wrapper, result.out, result.err);
  CHECK(result.exit_code == 0);
  CHECK(result.out == Undisturbed());
  CHECK(result.err.find("dtrun: rank " + rank + " on " + host + " was killed ") == 0);
  CHECK(result.err.find("dtrun: all 4 ranks go on, ") != std::string::npos);
}

TEST_CASE("the timeline has both processes of a rank that was killed on another host") {
  if (Skipped()) return;
  const std::string path = "/var/tmp/elastic_trace." + std::to_string(getpid());
  const CommandResult result = ElasticJob(
      100, "await 40; ssh h2 kill -KILL $(process 3)", "--restarts 5 --timeline " + path);
  CAPTURE(result.err);
  CHECK(result.exit_code == 0);
  const CommandResult found =
      Run(Command{.argv = {"/usr/bin/python3", "tests/support/check_trace.py", path}});
  CAPTURE(found.out, found.err);
  REQUIRE(found.exit_code == 0);
  const auto timeline = ReadJson(path);
  std::filesystem::remove(path);
  std::map<int, std::set<int>> epochs, processes;  // by rank
  for (const auto& rank : timeline["otherData"]["ranks"]) {
    epochs[rank["rank"]].insert(rank["epoch"].get<int>());
    processes[rank["rank"]].insert(rank["pid"].get<int>());
    CHECK((rank["clock_uncertainty_us"] > 0) == (rank["host"] == "h2"));
  }
  for (int rank = 0; rank < 4; ++rank) {
    CHECK(epochs[rank] == std::set<int>{0, 1});
    CHECK(processes[rank].size() == (rank == 3 ? 2 : 1));
  }
  CHECK(found.out.find(" X \"rank 3 on h2 was killed by SIGKILL\" 1\n") != std::string::npos);
}

TEST_CASE("ranks that are killed on both hosts, again and again, lose no step") {
  if (Skipped()) return;
  const CommandResult result = ElasticJob(
      200,
      "await 20; ssh h2 kill -KILL $(process 2) & kill -KILL $(process 1)\n"
      "await 60; kill -KILL $(process 0)\n"
      "sleep 0.1; ssh h2 kill -KILL $(process 3)\n"
      "await 120; ssh h2 kill -KILL $(process 2) $(process 3)\n",
      "--restarts 50");
  CAPTURE(result.out, result.err);
  CHECK(result.exit_code == 0);
  CHECK(result.out == Undisturbed());
}

TEST_CASE("a lost host ends a job whose ranks are started again") {
  if (Skipped()) return;
  const CommandResult result = ElasticJob(
      1000, "await 20; nsenter --net=/run/rig/h2/net ip link set eth0 down",
      "--restarts 5 --host-timeout 4");
  CAPTURE(result.out, result.err);
  CHECK(result.exit_code == 69);
  CHECK(result.err.find("dtrun: host h2 was lost: ") != std::string::npos);
}

TEST_CASE("a spare host takes the ranks of a lost host") {
  if (Skipped()) return;
  const std::string fault = GENERATE(
      as<std::string>(), "nsenter --net=/run/rig/h2/net ip link set eth0 down",
      "ssh h2 pkill -KILL dtrun_agent", "ssh h2 kill -KILL -1");
  const CommandResult result =
      ElasticJob(200, "await 40\n" + fault, "--restarts 5 --host-timeout 4", "h1:2,h2:2,h3:2");
  CAPTURE(fault, result.out, result.err);
  CHECK(result.exit_code == 0);
  CHECK(result.out == Undisturbed());
  CHECK(result.err.find("dtrun: host h2 was lost: ") != std::string::npos);
  CHECK(result.err.find("; spare host h3 takes its ranks\n") != std::string::npos);
  CHECK(result.err.find("dtrun: all 4 ranks go on, ") != std::string::npos);
}

TEST_CASE("the copies on other hosts save the shares of a lost host") {
  if (Skipped()) return;
  const std::string hosts = GENERATE(as<std::string>(), "h1:2,h2:2,h3:2", "h1:2,h2:2");
  const auto run = [&](const std::string& faults) {
    return RunOn(
        "h1,h2,h3", 400, "--launcher ssh --restarts 5 --min-np 2 --host-timeout 4 -H " + hosts,
        faults, "", "elastic_sharded");
  };
  const CommandResult undisturbed = run(":");
  CHECK(undisturbed.out.find("400 steps, digest ") == 0);
  const CommandResult result = run("await 40; ssh h2 kill -KILL -1");
  CAPTURE(hosts, result.out, result.err);
  CHECK(result.exit_code == 0);
  CHECK(result.out == undisturbed.out);
  CHECK(result.err.find("dtrun: host h2 was lost: ") != std::string::npos);
  CHECK(result.err.find(" goes on from step ") != std::string::npos);
  CHECK(result.err.find("elastic_sharded: ") == std::string::npos);
}

TEST_CASE("a share that is lost with its copy begins the training again") {
  if (Skipped()) return;
  const CommandResult result = RunOn(
      "h1,h2,h3", 600,
      "--launcher ssh --restarts 5 --min-np 1 --host-timeout 4 -H h1:1,h2:1,h3:1 -np 3",
      "await 40; ssh h3 kill -STOP $(process 2); ssh h2 kill -KILL -1; ssh h3 kill -KILL -1", "",
      "elastic_sharded");
  CAPTURE(result.out, result.err);
  CHECK(result.exit_code == 0);
  CHECK(result.out.find("600 steps, digest ") == 0);
  CHECK(
      result.err.find(
          "elastic_sharded: the ranks that held one share of a sharded optimizer's state were lost "
          "together; ") != std::string::npos);
}

TEST_CASE("the ranks of the first host move, and the others meet at the new address") {
  if (Skipped()) return;
  const CommandResult result =
      ElasticJob(200, "await 40; ssh h2 pkill -KILL dtrun_agent", "--restarts 5", "h2:2,h3:2,h1:2");
  CAPTURE(result.out, result.err);
  CHECK(result.exit_code == 0);
  CHECK(result.out == Undisturbed());
  CHECK(result.err.find("; spare host h1 takes its ranks\n") != std::string::npos);
}

TEST_CASE("the loss of a spare host is reported and the job goes on") {
  if (Skipped()) return;
  const CommandResult result =
      ElasticJob(200, "await 40; ssh h3 pkill -KILL dtrun_agent", "--restarts 5", "h1:2,h2:2,h3:2");
  CAPTURE(result.out, result.err);
  CHECK(result.exit_code == 0);
  CHECK(result.out == Undisturbed());
  CHECK(result.err.find("dtrun: host h3 was lost: ") != std::string::npos);
  CHECK(result.err.find("; the host was a spare\n") != std::string::npos);
}

// ---- Jobs that mpirun starts again --------------------------------------------------------------

CommandResult MpiJob(const std::string& faults, const std::string& options) {
  return RunOn("h1,h2,h3", 200, "--launcher mpirun " + options, faults);
}

TEST_CASE("mpirun starts a job again whose ranks are killed on both hosts") {
  if (Skipped()) return;
  const CommandResult result = MpiJob(
      "await 40; ssh h2 kill -KILL $(process 3)\n"
      "await 80; for host in h1 h2; do ssh $host 'echo kept on $(ls /dev/shm/dtrun.*/kept_state | "
      "wc "
      "-l)' >&2; done\n"
      "kill -KILL $(process 0)\n"
      "await 120; ssh h2 kill -KILL $(ssh h2 ps -o ppid= $(process 2))",
      "--restarts 5 -H h1:2,h2:2");
  CAPTURE(result.out, result.err);
  CHECK(result.exit_code == 0);
  CHECK(result.out == Undisturbed());
  CHECK(result.err.find("dtrun: rank 3 on h2 was killed by SIGKILL in step ") != std::string::npos);
  CHECK(result.err.find("dtrun: rank 0 on h1 was killed by SIGKILL in step ") != std::string::npos);
  CHECK(result.err.find("dtrun: rank 2 on h2 was killed together with ") != std::string::npos);
  CHECK(result.err.find("; the job is started again (restart 3 of 5)\n") != std::string::npos);
  CHECK(result.err.find("kept on 1\nkept on 1\n") != std::string::npos);
}

TEST_CASE("mpirun starts a job again on a spare host, with the state of the host that is left") {
  if (Skipped()) return;
  const std::string fault = GENERATE(
      as<std::string>(), "nsenter --net=/run/rig/h2/net ip link set eth0 down",
      "ssh h2 pkill -KILL dtrun_agent");
  const CommandResult result =
      MpiJob("await 40\n" + fault, "--restarts 5 --host-timeout 4 -H h1:2,h2:2,h3:2");
  CAPTURE(fault, result.out, result.err);
  CHECK(result.exit_code == 0);
  CHECK(result.out == Undisturbed());
  CHECK(result.err.find("dtrun: host h2 was lost: ") != std::string::npos);
  CHECK(result.err.find("; spare host h3 takes its ranks\n") != std::string::npos);
  CHECK(result.err.find("dtrun: all 4 ranks go on, ") != std::string::npos);
}

TEST_CASE("a training of mpirun that loses ranks of two hosts has the digest of a calm one") {
  if (Skipped()) return;
  TemporaryFolder folder;
  const auto train = [&](const Words& options) {
    Words words = {"launcher/dtrun", "--tag", "none", "--launcher", "mpirun", "-np", "4", "-H",
                   "h1:2,h2:2"};
    words.insert(words.end(), options.begin(), options.end());
    words.insert(
        words.end(), {"models/cnn_fmnist", "--deterministic", "--global-batch-size", "32",
                      "--max-steps", "400", "--epochs", "4", "--steps-per-epoch", "100",
                      "--verbose", "0", "--json", folder.path() + "/result"});
    const CommandResult result = Run(OnHosts(words));
    CAPTURE(result.out, result.err);
    REQUIRE(result.exit_code == 0);
    const std::string digest = ReadJson(folder.path() + "/result").at("parameter_digest");
    return std::pair(digest, result.err);
  };
  const auto calm = train({});
  const auto stormy =
      train({"--restarts", "9", "--inject", "kill rank 3 at step 20; kill rank 0 at step 80"});
  CAPTURE(stormy.second);
  CHECK(stormy.first == calm.first);
  CHECK(stormy.second.find("; the job is started again (restart 2 of 9)\n") != std::string::npos);
}

// ---- Jobs that change their size ----------------------------------------------------------------

constexpr char kCut[] = "nsenter --net=/run/rig/h2/net ip link set eth0 down";

TEST_CASE("a job goes on without the ranks of a lost host") {
  if (Skipped()) return;
  const std::string fault = GENERATE(as<std::string>(), kCut, "ssh h2 kill -KILL -1");
  const std::string transport = GENERATE("tcp", "ucx");
  const std::string report = "/var/tmp/elastic-report." + std::to_string(getpid());
  const CommandResult result = ElasticJob(
      200, "await 40\n" + fault,
      "--restarts 5 --min-np 2 --host-timeout 4 --report-json " + report + " --transport " +
          transport);
  CAPTURE(fault, transport, result.out, result.err);
  CHECK(result.exit_code == 0);
  // The end of OpenUCX must not wait for the lost host.
  CHECK(ReadJson(report).at("losses").at(0).at("recovery_s") < 3);
  std::filesystem::remove(report);
  CHECK(result.out == Undisturbed());
  CHECK(result.err.find("dtrun: host h2 was lost: ") != std::string::npos);
  CHECK(result.err.find("; the job goes on with 2 ranks\n") != std::string::npos);
  CHECK(result.err.find("dtrun: all 2 ranks go on, ") != std::string::npos);
}

TEST_CASE("a host whose link was cut joins again when the link is back") {
  if (Skipped()) return;
  const CommandResult result = ElasticJob(
      1000,
      std::string("await 40\n") + kCut +
          "\nawait 200; nsenter --net=/run/rig/h2/net ip link set eth0 up",
      "--restarts 5 --min-np 2 --host-timeout 4");
  CAPTURE(result.out, result.err);
  CHECK(result.exit_code == 0);
  CHECK(result.out.find("1000 steps, digest ") == 0);
  CHECK(result.out.find("each example 20 times\n") != std::string::npos);
  CHECK(result.err.find("; the job goes on with 2 ranks\n") != std::string::npos);
  CHECK(result.err.find(" on h2 join; the job goes on with 4 ranks\n") != std::string::npos);
  CHECK(result.err.find("dtrun: all 4 ranks go on, ") != std::string::npos);
}

// `faults` change the hosts in $work/hosts with the function name.
CommandResult DiscoveredJob(
    int steps, const std::string& faults, const std::string& options,
    const std::string& names = "h1,h2,h3") {
  return RunOn(
      names, steps, "--host-discovery-script $work/discover " + options, faults,
      "name() { printf '%s\\n' \"$@\" > $work/new && mv $work/new $work/hosts; }\n"
      "name h1:2 h2:2\n"
      "printf '#!/bin/sh\\ncat %s\\n' $work/hosts > $work/discover; chmod +x $work/discover\n");
}

TEST_CASE("a job grows to the hosts that the discovery names and leaves those it names no more") {
  if (Skipped()) return;
  const CommandResult result = DiscoveredJob(
      600, "await 40; name h1:2 h2:2 h3:2\nawait 250; name h1:2 h3:2",
      "--restarts 5 --min-np 2 --max-np 6");
  CAPTURE(result.out, result.err);
  CHECK(result.exit_code == 0);
  CHECK(result.out.find("600 steps, digest ") == 0);
  CHECK(result.out.find("each example 12 times\n") != std::string::npos);
  CHECK(
      result.err.find("dtrun: ranks 4 and 5 on h3 join; the job goes on with 6 ranks\n") !=
      std::string::npos);
  CHECK(result.err.find("dtrun: all 6 ranks go on, ") != std::string::npos);
  CHECK(
      result.err.find("dtrun: host h2 was lost: --host-discovery-script names it no more\n") !=
      std::string::npos);
  CHECK(result.err.find("dtrun: all 4 ranks go on, ") != std::string::npos);
}

TEST_CASE("a job of mpirun starts again on the hosts that the discovery names") {
  if (Skipped()) return;
  const CommandResult result = DiscoveredJob(
      600, "await 40; name h1:2 h2:2 h3:2\nawait 250; name h1:2 h3:2",
      "--launcher mpirun --restarts 5 --min-np 2 --max-np 6");
  CAPTURE(result.out, result.err);
  CHECK(result.exit_code == 0);
  CHECK(result.out.find("600 steps, digest ") == 0);
  CHECK(result.out.find("each example 12 times\n") != std::string::npos);
  CHECK(result.err.find("dtrun: all 6 ranks go on, ") != std::string::npos);
  CHECK(result.err.find("dtrun: all 4 ranks go on, ") != std::string::npos);
}

TEST_CASE("a job of mpirun without room to keep its state warns and begins again after a loss") {
  if (Skipped()) return;
  const CommandResult result = RunOn(
      "h1,h2,h3", 100, "--launcher mpirun --restarts 5 -H h1:2,h2:2",
      "await 40; ssh h2 kill -KILL $(process 3)",
      "for host in h1 h2; do ssh $host mount -t tmpfs -o size=12k none /dev/shm; done\n");
  CAPTURE(result.out, result.err);
  CHECK(result.exit_code == 0);
  CHECK(result.out.find("100 steps, digest ") == 0);
  CHECK(result.out.find("each example 2 times\n") != std::string::npos);
  CHECK(
      result.err.find("No space left on device; after a loss, training goes on from an earlier "
                      "step\n") != std::string::npos);
  CHECK(result.err.find("dtrun: all 4 ranks go on, ") != std::string::npos);
}

TEST_CASE("a job with too few ranks waits until the discovery names a host") {
  if (Skipped()) return;
  const CommandResult result = DiscoveredJob(
      200, "await 40; name h1:2; ssh h2 pkill -KILL dtrun_agent\nsleep 3; name h1:2 h3:2",
      "--restarts 5 --min-np 3");
  CAPTURE(result.out, result.err);
  CHECK(result.exit_code == 0);
  CHECK(result.out == Undisturbed());
  CHECK(
      result.err.find("2 ranks left of at least 3 (--min-np): the job waits for hosts\n") !=
      std::string::npos);
  CHECK(
      result.err.find("dtrun: hosts have come; the job goes on with 4 ranks\n") !=
      std::string::npos);
  CHECK(result.err.find("dtrun: all 4 ranks go on, ") != std::string::npos);
}

TEST_CASE("a job that waits for hosts in vain ends after --elastic-timeout") {
  if (Skipped()) return;
  const CommandResult result = DiscoveredJob(
      1000, "await 40; name h1:2; ssh h2 pkill -KILL dtrun_agent",
      "--restarts 5 --elastic-timeout 3");
  CAPTURE(result.out, result.err);
  CHECK(result.exit_code == 69);
  CHECK(
      result.err.find("2 ranks were left, expected at least 4 (--min-np), and no host came within "
                      "3 s (--elastic-timeout)\n") != std::string::npos);
}

// ---- A storm ------------------------------------------------------------------------------------

int Wish(const char* name, int otherwise) {
  const char* wish = std::getenv(name);
  return wish == nullptr ? otherwise : std::atoi(wish);
}

// `events` random events of four hosts, as shell commands with pauses. dtrun runs on h1.
std::string RandomFaults(int events, unsigned seed) {
  std::mt19937 random(seed);
  const auto draw = [&](int least, int most) {
    return std::uniform_int_distribution<int>(least, most)(random);
  };
  std::string script = "await 40\n";
  for (int i = 0; i < events; ++i) {
    const std::string other = "h" + std::to_string(draw(2, 4));
    const std::string any = "ssh h" + std::to_string(draw(1, 4));
    switch (draw(0, 9)) {
      case 0:
      case 1:
      case 2: script += any + " pkill -KILL -o -x elastic\n"; break;
      case 3: script += any + " pkill -KILL -n -x dtrun_rank\n"; break;
      case 4: script += any + " 'pkill -STOP -o -x elastic; sleep 1; pkill -CONT elastic'\n"; break;
      case 5: script += "ssh " + other + " pkill -KILL -x dtrun_agent\n"; break;
      case 6: script += "ssh " + other + " 'pkill -KILL dtrun_; pkill -KILL -x elastic'\n"; break;
      case 7:
        script += "nsenter --net=/run/rig/" + other + "/net ip link set eth0 down; sleep " +
                  std::to_string(draw(1, 7)) + "; nsenter --net=/run/rig/" + other +
                  "/net ip link set eth0 up\n";
        break;
      default: {
        std::string hosts = "name h1:2";
        for (const char* host : {" h2:2", " h3:2", " h4:2"})
          if (draw(0, 3) > 0) hosts += host;
        script += hosts + "\n";
      }
    }
    script += "sleep 0." + std::to_string(draw(1, 9)) + "\n";
  }
  return script + "name h1:2 h2:2 h3:2 h4:2";
}

void PrintRecoveries(const nlohmann::json& report) {
  std::vector<double> of_processes, of_hosts, of_joins;
  for (const nlohmann::json& loss : report.at("losses")) {
    if (!loss.at("recovery_s").is_number()) continue;
    const bool by_host = loss.at("reason").get<std::string>().find("host") != std::string::npos;
    auto& seconds = loss.at("ranks").empty() ? of_joins : by_host ? of_hosts : of_processes;
    seconds.push_back(loss.at("recovery_s"));
  }
  for (const auto& [what, seconds] :
       {std::pair("lost processes", &of_processes), std::pair("lost hosts", &of_hosts),
        std::pair("joins", &of_joins)}) {
    std::sort(seconds->begin(), seconds->end());
    if (!seconds->empty())
      std::printf(
          "%zu %s: all ranks worked again after %.2f s (median), %.2f s (most)\n", seconds->size(),
          what, (*seconds)[seconds->size() / 2], seconds->back());
  }
}

TEST_CASE("a storm of lost ranks, lost hosts and new hosts changes no bit of the result") {
  if (Skipped()) return;
  const int events = Wish("ELASTIC_HOST_EVENTS", 30), steps = 100 * events;
  const auto seed = static_cast<unsigned>(Wish("ELASTIC_SEED", 1));
  const TemporaryFolder folder;
  const CommandResult calm = Run(
      {.argv = {
           kDtrun, "--tag", "none", "-np", "2", "tests/ranks/elastic", std::to_string(steps),
           folder.path()}});
  // The hosts have a /tmp of their own.
  const std::string report = "/var/tmp/elastic-report." + std::to_string(getpid());
  const CommandResult result = DiscoveredJob(
      steps, RandomFaults(events, seed),
      "--restarts 100000 --min-np 2 --max-np 8 --host-timeout 4 --report-json " + report,
      "h1,h2,h3,h4");
  CAPTURE(seed, result.err);
  CHECK(calm.out.find("digest") != std::string::npos);
  CHECK(result.exit_code == 0);
  CHECK(result.out == calm.out);
  PrintRecoveries(base::ParseJsonOrDiscard(ReadText(report)));
  std::filesystem::remove(report);
}

}  // namespace
}  // namespace dtrun::testing
