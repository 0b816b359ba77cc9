// Ranks of several hosts that no launcher of MPI has started: they meet at MASTER_ADDR:MASTER_PORT
// or at the first task of TF_CONFIG, and exchange data over TCP or OpenUCX.

#include <catch2/catch.hpp>
#include <chrono>
#include <cmath>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "tests/models/idx_files.h"
#include "tests/multihost/rig.h"
#include "tests/support/json.h"

namespace {

using namespace dtrun::testing;
using Catch::Matchers::Contains;

// A shell function that starts rank $2 of $3 on host $1: the rest is the command. Call it in the
// background.
const std::string kRank =
    "export DTRUN_JOB_SECRET=0123456789abcdef0123456789abcdef; on() { h=$1 r=$2 n=$3; shift 3; "
    "ssh $h \"cd $PWD && RANK=$r WORLD_SIZE=$n MASTER_ADDR=h1 MASTER_PORT=29500 "
    "DTRUN_JOB_SECRET=$DTRUN_JOB_SECRET $*\"; }; ";

TEST_CASE("ranks started by hand on two hosts conform over each transport") {
  if (Skipped()) return;
  const std::string transport = GENERATE("tcp", "ucx"), backend = GENERATE("auto", "flat");
  const std::string options = "DTRUN_BACKEND=" + (backend == "auto" ? backend : transport) +
                              " DTRUN_TRANSPORT=" + transport;
  const CommandResult result = Run(ScriptOnHosts(
      kRank + "p=\"" + options +
      " tests/ranks/conformance\"; on h1 0 3 $p & a=$!; on h2 1 3 $p & b=$!; on h2 2 3 $p && "
      "wait $a && wait $b"));
  CAPTURE(transport, backend, result.out, result.err);
  CHECK(result.exit_code == 0);
}

TEST_CASE("ranks on several hosts listen at the ports that the user allows and at no others") {
  if (Skipped()) return;
  const CommandResult result = Run(ScriptOnHosts(
      "ports() { for h in h1 h2; do ssh $h ss -Hltn; done | awk '{sub(/.*:/, \"\", $4); if ($4 != "
      "22) print $4}' | sort; }; launcher/dtrun --tag none --launcher ssh --tcp-ports 24000-24003 "
      "-H h1:2,h2:2 tests/ranks/summing 400 >&2 & for i in $(seq 60); do found=$(ports); [ $(echo "
      "\"$found\" | wc -l) -lt 4 ] || break; sleep .1; done; echo \"$found\"; wait $!"));
  CAPTURE(result.err);
  CHECK(result.exit_code == 0);
  CHECK(result.out == "24000\n24001\n24002\n24003\n");
}

TEST_CASE("tasks of a TF_CONFIG on two hosts meet at the first task") {
  if (Skipped()) return;
  const CommandResult result = Run(ScriptOnHosts(
      "task() { ssh $1 \"cd $PWD && DTRUN_JOB_SECRET=0123456789abcdef "
      "TF_CONFIG='{\\\"cluster\\\": {\\\"worker\\\": [\\\"h1:4000\\\", \\\"h2:4000\\\"]}, "
      "\\\"task\\\": {\\\"type\\\": \\\"worker\\\", \\\"index\\\": $2}}' tests/ranks/summing 2\"; "
      "}; task h1 0 & task h2 1 && wait $!"));
  CAPTURE(result.err);
  CHECK(result.exit_code == 0);
  CHECK_THAT(result.out, Contains("sum 12.0\n"));
}

TEST_CASE("ranks of several hosts without a secret or with another secret are refused") {
  if (Skipped()) return;
  const CommandResult without = Run(ScriptOnHosts(
      "cd $PWD; RANK=0 WORLD_SIZE=2 LOCAL_WORLD_SIZE=1 MASTER_ADDR=h1 MASTER_PORT=29500 "
      "tests/ranks/summing"));
  CHECK_THAT(without.err, Contains("ranks on several hosts need DTRUN_JOB_SECRET"));
  CHECK(without.exit_code != 0);
  const CommandResult another = Run(ScriptOnHosts(
      kRank +
      "on h1 0 2 DTRUN_TIMEOUT_S=4 tests/ranks/summing & "
      "on h2 1 2 DTRUN_JOB_SECRET=fedcba9876543210 DTRUN_TIMEOUT_S=4 tests/ranks/summing; wait"));
  CAPTURE(another.err);
  CHECK_THAT(another.err, Contains("secret"));
  CHECK_THAT(another.err, Contains("rank 1"));
}

TEST_CASE("dtrun without MPI on any host trains as Open MPI does") {
  if (Skipped()) return;
  TemporaryFolder folder;
  WriteToySet(folder, 400);
  const auto losses = [&](const std::string& options) {
    const std::string file = folder / "result.json";
    const CommandResult result = Run(ScriptOnHosts(
        "exec launcher/dtrun --tag none -H h1:1,h2:2 " + options +
        " models/cnn_fmnist --threads 1 --data-dir " + folder.path() +
        " --optimizer sgd --learning-rate 0.05 --global-batch-size 24 --max-steps 20 --verbose 0 "
        "--log-steps --json " +
        file));
    CAPTURE(options, result.out, result.err);
    REQUIRE(result.exit_code == 0);
    return ReadJson(file).at("steps");
  };
  const nlohmann::json expected = losses("--launcher mpirun");
  REQUIRE(expected.size() == 20);
  for (const char* options :
       {"--launcher ssh", "--launcher ssh --transport ucx", "--launcher mpirun --transport tcp"}) {
    const nlohmann::json found = losses(options);
    REQUIRE(found.size() == expected.size());
    for (size_t i = 0; i < found.size(); ++i) {
      CAPTURE(options, i);
      CHECK(std::abs(found[i].get<double>() - expected[i].get<double>()) < 1e-5);
    }
  }
}

// Ways to start ranks on h1 and h2 without dtrun. $1 is the command of a rank; it contains no
// single quotes. A way whose program is not installed is skipped.
const std::vector<std::pair<std::string, std::string>> kStarters = {
    {"TF_CONFIG",
     "task() { ssh $1 \"cd $PWD && DTRUN_JOB_SECRET=$DTRUN_JOB_SECRET "
     "TF_CONFIG='{\\\"cluster\\\": {\\\"worker\\\": [\\\"h1:4000\\\", \\\"h2:4000\\\"]}, "
     "\\\"task\\\": {\\\"type\\\": \\\"worker\\\", \\\"index\\\": $2}}' $3\"; }; "
     "start() { task h1 0 \"$1\" & task h2 1 \"$1\" && wait $!; }; "},
    {"sh",  // with the variables of srun
     "task() { ssh $1 \"cd $PWD && DTRUN_JOB_SECRET=$DTRUN_JOB_SECRET SLURM_JOB_ID=41 "
     "SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=2 SLURM_STEP_NUM_NODES=2 "
     "SLURM_STEP_NODELIST=h[1-2] SLURM_PROCID=$2 $3\"; }; "
     "start() { task h1 0 \"$1\" & task h2 1 \"$1\" && wait $!; }; "},
    {"mpiexec.hydra",
     "start() { env -u DTRUN_JOB_SECRET mpiexec.hydra -launcher ssh -hosts h1,h2 -ppn 1 -n 2 $1; "
     "}; "},
    {"mpiexec.hydra",  // MPICH also carries the data
     "start() { env -u DTRUN_JOB_SECRET DTRUN_TRANSPORT=mpi mpiexec.hydra -launcher ssh "
     "-hosts h1,h2 -ppn 1 -n 2 $1; }; "},
    {"torchrun",
     "node() { ssh $1 \"cd $PWD && DTRUN_JOB_SECRET=$DTRUN_JOB_SECRET $torchrun --nnodes 2 "
     "--node_rank $2 --nproc_per_node 1 --master_addr h1 --master_port 29500 --no_python $3\"; }; "
     "start() { node h1 0 \"$1\" & node h2 1 \"$1\" && wait $!; }; torchrun=$(command -v "
     "torchrun); "},
};

TEST_CASE("ranks that others start on two hosts train as under mpirun") {
  if (Skipped()) return;
  TemporaryFolder folder;
  WriteToySet(folder, 400);
  const std::string file = folder / "result.json";
  const std::string train =
      "models/cnn_fmnist --threads 1 --data-dir " + folder.path() +
      " --optimizer sgd --learning-rate 0.05 --global-batch-size 24 --max-steps 20 --verbose 0 "
      "--log-steps --json " +
      file;
  const auto losses = [&](const std::string& script) {
    const CommandResult result = Run(ScriptOnHosts(script));
    CAPTURE(script, result.out, result.err);
    REQUIRE(result.exit_code == 0);
    return ReadJson(file).at("steps");
  };
  const nlohmann::json expected =
      losses("exec launcher/dtrun --tag none --transport mpi -H h1:1,h2:1 " + train);
  REQUIRE(expected.size() == 20);
  for (const auto& [program, start] : kStarters) {
    // Debian's torchrun 1.13 fails with Python 3.11.
    const std::string try_it = program == "torchrun"
                                   ? "torchrun --nproc_per_node 1 --no_python true"
                                   : "command -v " + program;
    if (program != "TF_CONFIG" && Run({.argv = {"sh", "-c", try_it}}).exit_code != 0) {
      std::printf("SKIPPED: %s is not installed, or cannot start a program\n", program.c_str());
      continue;
    }
    const nlohmann::json found = losses(
        "export DTRUN_JOB_SECRET=0123456789abcdef0123456789abcdef; " + start + "start \"" + train +
        "\"");
    REQUIRE(found.size() == expected.size());
    for (size_t i = 0; i < found.size(); ++i) {
      CAPTURE(program, i);
      CHECK(std::abs(found[i].get<double>() - expected[i].get<double>()) < 1e-5);
    }
  }
}

// The reaction to a lost rank, with the seconds that it took in `seconds`.
std::string Survivors(const std::string& fault, const std::string& options, double& seconds) {
  const CommandResult result = Run(ScriptOnHosts(
      kRank + "p=\"" + options +
      " tests/ranks/summing 100000\"; (on h1 0 3 $p >/run/0 2>&1; date +%s.%N >/run/end) & "
      "(on h1 1 3 $p >/run/1 2>&1) & (on h2 2 3 $p >/run/2 2>&1) & "
      "until grep -q . /run/0 && grep -q . /run/1 && grep -q . /run/2; do sleep 0.1; done; sleep "
      "1; "
      "date +%s.%N >/run/begin; " +
      fault +
      "; until [ -s /run/end ]; do sleep 0.05; done; sleep 0.5; cat /run/0 /run/1; echo "
      "\"$(cat /run/begin) $(cat /run/end)\""));
  const size_t last = result.out.rfind('\n', result.out.size() - 2);
  double begin = 0, end = 0;
  std::sscanf(result.out.c_str() + last + 1, "%lf %lf", &begin, &end);
  seconds = end - begin;
  return result.out + result.err;
}

TEST_CASE("the end of a rank on another host is told to all ranks at once") {
  if (Skipped()) return;
  double seconds = 0;
  const std::string transport = GENERATE("tcp", "ucx");
  const std::string told =
      Survivors("ssh h2 pkill -9 -f ^tests/ranks/summing", "DTRUN_TRANSPORT=" + transport, seconds);
  CAPTURE(transport, told);
  CHECK_THAT(told, Contains("rank 2 (h2) is lost: "));
  CHECK(seconds < 15);  // without waiting for peer_timeout_s, which is 30, on a busy machine too
}

TEST_CASE("a host that falls silent is told to all ranks after the time that was set") {
  if (Skipped()) return;
  double seconds = 0;
  const std::string told = Survivors(
      "nsenter --net=/run/rig/h2/net ip link set eth0 down", "DTRUN_PEER_TIMEOUT_S=4", seconds);
  CAPTURE(told);
  CHECK_THAT(told, Contains("rank 2 (h2) is lost: its host does not answer"));
  CHECK(seconds > 2);
  CHECK(seconds < 15);
}

}  // namespace
