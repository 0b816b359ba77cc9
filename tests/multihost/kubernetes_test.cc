// Jobs as Kubernetes' MPI operator starts them. with_pods keeps the operator's contract: the host
// files, names, variables, ssh secret and user of its pods.

#include <yaml-cpp/yaml.h>

#include <catch2/catch.hpp>
#include <cstdio>
#include <map>
#include <string>

#include "tests/multihost/rig.h"
#include "tests/support/python.h"
#include "tests/support/text.h"

namespace {

using namespace dtrun::testing;
using Catch::Matchers::Contains;
using Catch::Matchers::EndsWith;
using Catch::Matchers::StartsWith;

// $job is dtrun, as the user of the pods. `until_all` waits until four ranks have written to $out.
CommandResult InPods(const std::string& script) {
  const std::string shell =
      "job='as_user launcher/dtrun --tag none'; out=/run/tmp/out; "
      "until_all() { until [ $(cat $out | wc -l) -ge 4 ]; do sleep 0.1; done; }; ";
  return Run(OnHosts(
      {"tests/multihost/with_pods", "pi-launcher", "pi-worker-0", "pi-worker-1", "--", "sh", "-c",
       shell + script},
      {"--names", "pi-launcher,pi-worker-0,pi-worker-1"}));
}

TEST_CASE("a launcher pod needs no options: the operator's host file names the workers") {
  if (Skipped()) return;
  const std::string launcher = GENERATE("mpirun", "ssh");
  const CommandResult result =
      InPods("$job --launcher " + launcher + " sh -c 'echo $RANK of $WORLD_SIZE on $(hostname)'");
  CAPTURE(launcher, result.err);
  for (const char* line :
       {"0 of 4 on pi-worker-0\n", "1 of 4 on pi-worker-0\n", "2 of 4 on pi-worker-1\n",
        "3 of 4 on pi-worker-1\n"})
    CHECK_THAT(result.out, Contains(line));
  CHECK(result.exit_code == 0);
}

std::string ExampleOfPage() {
  const std::string page = ReadText("docs/guides/kubernetes.md"), begin = "```yaml\n";
  const size_t at = page.find(begin) + begin.size();
  return page.substr(at, page.find("```\n", at) - at);
}

std::string Replaced(std::string text, const std::string& from, const std::string& to) {
  return text.replace(text.find(from), from.size(), to);
}

TEST_CASE("the example of the page has the fields and types of MPIJob and of Kubernetes' pods") {
  const std::string folder = FullFolder("kubernetes"), python = folder + "/bin/python";
  if (folder.empty()) return;
  const auto faults_of = [&](const std::string& job) {
    const TemporaryFolder temp;
    const CommandResult result =
        Run(Command{.argv = {python, "tests/multihost/check_mpi_job.py", temp.Write("job", job)}});
    return result.out + result.err;
  };
  const std::string job = ExampleOfPage();
  CHECK(faults_of(job) == "");
  CHECK(
      faults_of(Replaced(job, "runAsUser: 1000", "runAsUsr: 1000")) ==
      "job.spec.mpiReplicaSpecs.Launcher.template.spec.containers[0].securityContext.runAsUsr: "
      "found 'runAsUsr'; expected a field that exists\n");
  CHECK(
      faults_of(Replaced(job, "slotsPerWorker: 2", "slotsPerWorker: two")) ==
      "job.spec.slotsPerWorker: found 'two'; expected int\n");
}

TEST_CASE("the command of the page's example runs in the launcher's pod") {
  if (Skipped()) return;
  const YAML::Node job = YAML::Load(ExampleOfPage());
  std::string command;
  for (const auto& [role, replicas] :
       job["spec"]["mpiReplicaSpecs"].as<std::map<std::string, YAML::Node>>())
    if (role == "Launcher")
      for (const auto& word : replicas["template"]["spec"]["containers"][0]["command"])
        command += word.as<std::string>() + " ";
  const CommandResult result =
      InPods("ln -s examples/sgd train; PATH=$PWD/launcher:$PATH; as_user " + command);
  CAPTURE(command, result.err);
  CHECK_THAT(result.out, Contains("4 ranks agree on "));
  CHECK(result.exit_code == 0);
}

TEST_CASE("the operator's host files for MPICH and for Intel MPI are read, too") {
  if (Skipped()) return;
  const std::string variable = GENERATE("HYDRA_HOST_FILE", "I_MPI_HYDRA_HOST_FILE");
  const CommandResult result = InPods(
      "unset OMPI_MCA_orte_default_hostfile; export " + variable +
      "=/run/mpi/hostfile.mpich; $job --launcher ssh tests/ranks/conformance");
  CAPTURE(variable, result.err);
  CHECK(result.out == "hierarchical: many checks, 0 wrong\n");
}

TEST_CASE("ranks that use neither root nor Open MPI's daemons train between pods") {
  if (Skipped()) return;
  const CommandResult result =
      InPods("for l in mpirun ssh; do $job --launcher $l -np 2 tests/ranks/conformance; done");
  CAPTURE(result.err);
  CHECK_THAT(result.out, Contains("many checks, 0 wrong\n"));
  CHECK(result.exit_code == 0);
}

TEST_CASE("workers whose names and sshds come after the launcher are waited for") {
  if (Skipped()) return;
  const CommandResult result = InPods(
      "pod pi-worker-0 down; pod pi-worker-1 down; "
      "(sleep 2; pod pi-worker-1 up; sleep 2; pod pi-worker-0 up) & $job hostname | sort");
  CHECK(result.out == "pi-worker-0\npi-worker-0\npi-worker-1\npi-worker-1\n");
  CHECK_THAT(
      result.err,
      StartsWith("dtrun: waiting up to 300 s (--host-wait) for pi-worker-0.pi.default.svc "
                 "(ssh: ") &&
          Contains("pi-worker-1.pi.default.svc (ssh: "));
}

TEST_CASE("a worker that never comes ends the job and is named with ssh's words") {
  if (Skipped()) return;
  const CommandResult result =
      InPods("pod pi-worker-1 down; $job --host-wait 2 hostname; echo code $?");
  CHECK(result.out == "code 69\n");
  CHECK_THAT(
      result.err, Contains("dtrun: host pi-worker-1.pi.default.svc cannot be used: ssh: Could not "
                           "resolve hostname pi-worker-1.pi.default.svc: ") &&
                      EndsWith(" (--host-wait 2)\n"));
}

TEST_CASE("a key that ssh refuses is no reason to wait") {
  if (Skipped()) return;
  const std::string fault = GENERATE("chown 10000 $HOME/.ssh/id_rsa", "rm $HOME/.ssh/id_rsa");
  const CommandResult result = InPods(fault + "; $job hostname; echo code $?");
  CAPTURE(fault);
  CHECK(result.out == "code 69\n");
  CHECK_THAT(
      result.err, Contains(".svc cannot be used: mpiuser@pi-worker-") &&
                      Contains(": Permission denied (publickey,") && !Contains("--host-wait"));
}

TEST_CASE("a port given to dtrun goes together with the operator's arguments for ssh") {
  if (Skipped()) return;
  const std::string launcher = GENERATE("mpirun", "ssh");
  const CommandResult result = InPods(
      "sed -i /Port/d /etc/ssh/ssh_config; $job --launcher " + launcher +
      " --ssh-port 2222 hostname | sort");
  CAPTURE(launcher, result.err);
  CHECK(result.out == "pi-worker-0\npi-worker-0\npi-worker-1\npi-worker-1\n");
}

TEST_CASE("the launcher's pod can be a worker: its own name leads to no ssh") {
  if (Skipped()) return;
  const std::string launcher = GENERATE("mpirun", "ssh");
  const CommandResult result = InPods(
      "echo 'pi-launcher.pi.default.svc slots=1' >/run/tmp/hosts; cat /run/mpi/hostfile "
      ">>/run/tmp/hosts; export OMPI_MCA_orte_default_hostfile=/run/tmp/hosts; $job --launcher " +
      launcher + " sh -c 'echo $RANK $(hostname)' | sort");
  CAPTURE(launcher, result.err);
  CHECK_THAT(
      result.out, StartsWith("0 pi-launcher\n1 pi-worker-0\n") && EndsWith("4 pi-worker-1\n"));
}

TEST_CASE("more ranks than the workers have slots are refused and nothing starts") {
  if (Skipped()) return;
  const CommandResult result = InPods("$job -np 5 hostname; echo code $?");
  CHECK(result.out == "code 2\n");
  CHECK_THAT(
      result.err, StartsWith("dtrun: requested 5 ranks, but the host list has 4 slots ("
                             "pi-worker-0.pi.default.svc:2,pi-worker-1.pi.default.svc:2)"));
}

TEST_CASE("a deleted worker ends a job without --restarts and is named") {
  if (Skipped()) return;
  const CommandResult result = InPods(
      "($job --launcher ssh tests/ranks/summing 100000; echo code $?) >$out & until_all; "
      "pod pi-worker-1 down; wait; tail -n 1 $out");
  CHECK(result.out == "code 69\n");
  CHECK_THAT(result.err, Contains("pi-worker-1.pi.default.svc"));
}

TEST_CASE("a launcher that is deleted and starts again finds no rank of its former life") {
  if (Skipped()) return;
  const CommandResult result = InPods(
      "$job --launcher ssh tests/ranks/summing 100000 >$out & until_all; "
      "pkill -KILL -x dtrun; wait; "
      "$job --launcher ssh sh -c 'for i in $(seq 50); do pgrep -x summing >/dev/null || exit 0; "
      "sleep 0.1; done; exit 1'; echo code $?");
  CAPTURE(result.err);
  CHECK_THAT(result.out, EndsWith("code 0\n"));
}

TEST_CASE("the end of a pod's grace period begins with SIGTERM: the ranks save and dtrun says 75") {
  if (Skipped()) return;
  const CommandResult result = InPods(
      "$job --launcher ssh tests/launcher/dtrun/preemptible save >$out & "
      "until_all; pkill -TERM -x dtrun; wait $!; echo code $?; grep -c noticed $out");
  CAPTURE(result.err);
  CHECK(result.out == "code 75\n4\n");
}

TEST_CASE("discover_hosts.sh, which names no slots, replaces a deleted worker by a new pod") {
  if (Skipped()) return;
  const CommandResult result = InPods(
      "mkdir -m 777 /run/pods/steps; $job -H localhost:1 tests/ranks/elastic 400 /run/pods/steps; "
      "pod pi-worker-1 down; cp /run/mpi/discover_hosts.sh /run/tmp/both; "
      "grep -v worker-1 /run/tmp/both >/run/mpi/discover_hosts.sh; touch /run/pods/steps/slow; "
      "($job --launcher ssh --restarts 9 --host-discovery-script /run/mpi/discover_hosts.sh "
      "--slots-per-host 2 -np 2 tests/ranks/elastic 400 /run/pods/steps; echo code $?) >$out & "
      "sleep 3; pod pi-worker-1 up; cat /run/tmp/both >/run/mpi/discover_hosts.sh; sleep 2; "
      "grep -v worker-0 /run/tmp/both >/run/mpi/discover_hosts.sh; pod pi-worker-0 down; "
      "wait; cat $out");
  CAPTURE(result.err, result.out);
  const std::string undisturbed = result.out.substr(0, result.out.find('\n') + 1);
  CHECK(result.out == undisturbed + undisturbed + "code 0\n");
  CHECK_THAT(result.err, Contains("pi-worker-0.pi.default.svc"));
}

}  // namespace
