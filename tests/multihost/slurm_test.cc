// Jobs in Slurm's allocations: a real Slurm serves the hosts.

#include <catch2/catch.hpp>
#include <cstdlib>
#include <string>

#include "base/text.h"
#include "tests/models/idx_files.h"
#include "tests/multihost/rig.h"
#include "tests/support/text.h"

namespace {

using namespace dtrun::testing;
using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;

CommandResult InSlurm(const std::string& script, const Words& hosts = {"h1", "h2"}) {
  Words command = {"tests/multihost/with_slurm"};
  command.insert(command.end(), hosts.begin(), hosts.end());
  command.insert(command.end(), {"--", "sh", "-c", script});
  return Run(OnHosts(command, {"--names", dtrun::base::Join(hosts, ",")}));
}

// Whether this machine has no Slurm or cannot make hosts. If so, each call prints the reason.
bool NoSlurm() {
  if (Skipped()) return true;
  static const CommandResult result = InSlurm("true");
  return LacksSomething(result);
}

// Shell functions. `batch COMMAND` submits a batch script with $options, waits for its end, prints
// its output and returns its exit code. For all programs of the jobs, ssh fails.
const std::string kShell =
    kBlockSsh + kLeft +
    "export PATH=/run/no_ssh:$PATH; submit() { printf '#!/bin/bash\\n%s\\n' \"$*\" >/run/batch; "
    "shift $#; "
    "sbatch $wait --parsable ${options:---nodes 2 --ntasks-per-node 2} --output /run/out "
    "/run/batch; "
    "}; "
    "batch() { wait=--wait submit \"$@\" >/dev/null; code=$?; cat /run/out; return $code; }; ";

TEST_CASE("a batch script starts ranks on all nodes through srun, without ssh and MPI") {
  if (NoSlurm()) return;
  const CommandResult result =
      InSlurm(kShell + "batch launcher/dtrun --launcher srun --tag none tests/ranks/conformance");
  CAPTURE(result.err);
  CHECK(result.out == "hierarchical: many checks, 0 wrong\n");
  CHECK(result.exit_code == 0);
}

TEST_CASE("srun starts dtrun from a folder with a blank, and doctor looks at the nodes") {
  if (NoSlurm()) return;
  const CommandResult result = InSlurm(
      kShell +
      "mkdir '/run/my dtrun'; cp -L launcher/dtrun* '/run/my dtrun'; "
      "batch \"'/run/my dtrun/dtrun' doctor --launcher srun\"; "
      "batch \"'/run/my dtrun/dtrun' --launcher srun --tag none tests/ranks/conformance\"");
  CAPTURE(result.err, result.out);
  CHECK_THAT(result.out, Contains(", launcher srun") && Contains("\nAll 2 hosts are ready.\n"));
  CHECK_THAT(result.out, Contains("hierarchical: many checks, 0 wrong\n"));
  CHECK(result.exit_code == 0);
}

TEST_CASE("under srun a killed rank is named and the job ends with its code on all nodes") {
  if (NoSlurm()) return;
  const CommandResult result = InSlurm(
      kShell +
      "batch launcher/dtrun --launcher srun sh -c \"'[ \\$RANK = 3 ] && kill -9 \\$\\$; sleep "
      "60'\"; "
      "echo code $?; soon_none");
  CHECK_THAT(
      result.out, Contains("dtrun: rank 3 on h2 was killed by SIGKILL\n") &&
                      Catch::Matchers::EndsWith("code 137\n"));
}

TEST_CASE("the ranks of a job follow Slurm's tasks, also if the nodes have different numbers") {
  if (NoSlurm()) return;
  const CommandResult result = InSlurm(
      kShell +
          "options='--nodes 4 --ntasks 7'; batch launcher/dtrun --launcher srun --tag none "
          "sh -c \"'echo \\$RANK of \\$WORLD_SIZE on \\$(hostname)'\" \\| sort; "
          "batch launcher/dtrun --launcher srun --tag none tests/ranks/conformance",
      {"h1", "h2", "h3", "h4"});
  CAPTURE(result.err);
  CHECK(
      result.out ==
      "0 of 7 on h1\n1 of 7 on h1\n2 of 7 on h2\n3 of 7 on h2\n4 of 7 on h3\n5 of 7 on h3\n"
      "6 of 7 on h4\nhierarchical: many checks, 0 wrong\n");
}

TEST_CASE("ranks see the GPUs that Slurm has given to the job on their node") {
  if (NoSlurm()) return;
  const std::string program = "launcher/dtrun --launcher srun --tag none sh -c ";
  const CommandResult result = InSlurm(
      kShell + "options='--nodes 2 --ntasks 3 --gres gpu:2'; batch " + program +
      "\"'echo \\$RANK \\$(hostname) \\$CUDA_VISIBLE_DEVICES'\" \\| sort; "
      "salloc -Q --nodelist h2 --ntasks 2 --gres gpu:1 " +
      program + "'echo $RANK $(hostname) $CUDA_VISIBLE_DEVICES' | sort");
  CAPTURE(result.err);
  CHECK(result.out == "0 h1 0,1\n1 h1 0,1\n2 h2 0,1\n0 h2 0\n1 h2 0\n");
}

TEST_CASE("the jobs of an array run at once on the same nodes and do not meet") {
  if (NoSlurm()) return;
  const CommandResult result = InSlurm(
      kShell +
      "options='--array 0-1 --nodes 2 --ntasks-per-node 1 --open-mode append'; "
      "batch launcher/dtrun --launcher srun --tag none tests/ranks/conformance");
  CAPTURE(result.err);
  CHECK(result.out == "tcp: many checks, 0 wrong\ntcp: many checks, 0 wrong\n");
}

TEST_CASE("a job goes on if one of its nodes is drained, and saves before its time limit") {
  if (NoSlurm()) return;
  TemporaryFolder folder;
  WriteToySet(folder, 400);
  const CommandResult result = InSlurm(
      kShell +
      "options='--nodes 2 --ntasks-per-node 2 --time 1 --signal TERM@50'; "
      "(until grep -qs Epoch /run/out; do sleep 0.1; done; scontrol update nodename=h2 state=drain "
      "reason=test) & "
      "batch launcher/dtrun --launcher srun --tag none models/cnn_fmnist --data-dir " +
      folder.path() +
      " --threads 1 --global-batch-size 24 --epochs 99999 --checkpoint-dir /run/saved; echo code "
      "$?; "
      "sinfo --noheader --nodes h2 --partition all --format %T; ls /run/saved");
  CAPTURE(result.err, result.out);
  CHECK_THAT(
      result.out, Contains("dtrun: h2 was told to end the job (SIGTERM)\n") &&
                      Contains("; the state is saved in /run/saved\n") && Contains("code 75\n") &&
                      Contains("drained\n") && Contains("ckpt_"));
}

TEST_CASE("a cancelled Slurm job and a killed dtrun leave nothing on any node") {
  if (NoSlurm()) return;
  const std::string fault = GENERATE("scancel $job", "pkill -KILL -f 'launcher/dtrun --launcher'");
  const CommandResult result = InSlurm(
      kShell +
      "job=$(submit exec launcher/dtrun --launcher srun tests/ranks/summing 100000); "
      "until [ $(grep -c stdout /run/out) -ge 4 ]; do sleep 0.1; done; left | grep -c "
      "tests/ranks/summing; " +
      fault + "; soon_none");
  CAPTURE(fault, result.err);
  CHECK_THAT(result.out, Catch::Matchers::EndsWith("\n") && !Contains("tests/ranks"));
}

// Needs $data, $steps and $times. A job that is pre-empted $times times, about two seconds into
// each of its lives, and is put back into the queue. Prints the result of the same training on one
// host, the output of all lives, and the processes that are left.
const std::string kPreemptedTraining = R"sh(
train="models/cnn_fmnist --data-dir $data --threads 1 --deterministic --global-batch-size 24 --epochs 9999"
train="$train --max-steps $steps --verbose 0"
launcher/dtrun -np 4 --tag none $train
cat >/run/batch <<SCRIPT
#!/bin/bash
launcher/dtrun --launcher srun --tag none $train --checkpoint-dir /run/saved --resume
code=\$?
echo code \$code
[ \$code != 75 ] || scontrol requeue \$SLURM_JOB_ID
exit \$code
SCRIPT
job=$(sbatch --parsable --requeue --open-mode=append --nodes 2 --ntasks-per-node 2 --output /run/out /run/batch)
state() { squeue --noheader --jobs $job --format %t 2>/dev/null; }
for i in $(seq $times); do
  until [ "$(state)" = R ] || [ -z "$(state)" ]; do sleep 0.1; done
  sleep 1.$((i * 7 % 10))
  sbatch --wait --partition urgent --nodes 2 --ntasks-per-node 2 --output /dev/null --wrap true >/dev/null
done
while [ -n "$(state)" ]; do sleep 0.1; done
cat /run/out; soon_none)sh";

// SLURM_PREEMPTIONS: how many.
TEST_CASE(
    "a training that Slurm pre-empts again and again saves, resumes and ends as if left alone") {
  if (NoSlurm()) return;
  TemporaryFolder folder;
  WriteToySet(folder, 400);
  const char* wish = std::getenv("SLURM_PREEMPTIONS");
  const int times = wish != nullptr ? std::atoi(wish) : 3;
  const CommandResult result = InSlurm(
      kBlockSsh + kLeft +
      dtrun::base::Text(
          "export PATH=/run/no_ssh:$PATH; data=", folder.path(), " times=", times,
          " steps=", 1000 * times, kPreemptedTraining));
  CAPTURE(result.err, result.out);
  const std::string alone = result.out.substr(0, result.out.find('\n') + 1);
  CHECK_THAT(alone, Contains("parameters "));
  CHECK(CountOf(result.out, alone) == 2);
  CHECK(CountOf(result.out, "\ncode 75\n") == static_cast<size_t>(times));
  CHECK(CountOf(result.out, "cnn_fmnist: Resuming from /run/saved/") == static_cast<size_t>(times));
  CHECK_THAT(result.out, Catch::Matchers::EndsWith("code 0\n"));
}

TEST_CASE("tasks of srun find each other without dtrun's launcher and without PMIx") {
  if (NoSlurm()) return;
  const std::string mpi = GENERATE("none", "pmi2");
  const CommandResult result = InSlurm(
      "srun --mpi=" + mpi +
      " --nodes 1 --ntasks 2 tests/ranks/conformance; export "
      "DTRUN_JOB_SECRET=$(openssl rand -hex 16); srun --mpi=" +
      mpi + " --nodes 2 --ntasks 3 tests/ranks/conformance");
  CAPTURE(mpi, result.err);
  CHECK(result.out == "shm: many checks, 0 wrong\nhierarchical: many checks, 0 wrong\n");
  CHECK(result.exit_code == 0);
}

}  // namespace
