// The job that a process finds in its environment variables.

#include "runtime/job/join_plan.h"

#include <catch2/catch.hpp>
#include <map>
#include <string>

#include "base/text.h"
#include "dtrun/error.h"
#include "runtime/job/join_by_hand.h"

namespace {

using namespace dtrun::runtime;
using dtrun::ErrorCode;
using Variables = std::map<std::string, std::string>;
using Way = JoinPlan::Way;

// Host "h1", which is also 10.0.0.1. The program is "./train 'a b'".
const Machine kMachine = {
    "h1",
    [](const std::string& name) {
      return name == "h1" || name == "localhost" || name == "10.0.0.1" || name == "127.0.0.1" ||
             name == "::1";
    },
    [] {
      return std::vector<std::string>{"./train", "a b"};
    }};

JoinPlan PlanOf(const Variables& variables) {
  const auto get = [&](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  };
  return PlanJoin(get, dtrun::base::ReadLaunchEnv(get), kMachine);
}

std::string Described(const Variables& variables) {
  const JoinPlan plan = PlanOf(variables);
  if (plan.way == Way::kAlone) return "alone";
  if (plan.way == Way::kMpi) return "mpi";
  return dtrun::base::Text(plan.rank, " of ", plan.size, " at ", plan.meeting);
}

// The error as "invalid: <text>" or "unavailable: <text>".
std::string RefusalOf(const Variables& variables) {
  try {
    return "accepted: " + Described(variables);
  } catch (const dtrun::Error& error) {
    const bool wrong = error.code() == ErrorCode::kInvalidArgument;
    CHECK((wrong || error.code() == ErrorCode::kUnavailable));
    return std::string(wrong ? "invalid: " : "unavailable: ") + error.what();
  }
}

Variables With(Variables variables, const Variables& more) {
  for (const auto& [name, value] : more) variables[name] = value;
  return variables;
}

const Variables kTorch = {
    {"WORLD_SIZE", "4"}, {"RANK", "3"}, {"MASTER_ADDR", "localhost"}, {"MASTER_PORT", "29500"}};

std::string TfConfig(
    const std::string& workers, const std::string& task = "\"worker\", \"index\": 1") {
  return "{\"cluster\": {\"worker\": [" + workers + "]}, \"task\": {\"type\": " + task + "}}";
}

TEST_CASE("a process without launcher variables is a world of one rank") {
  CHECK(Described({}) == "alone");
  CHECK(Described({{"WORLD_SIZE", "1"}, {"RANK", "0"}}) == "alone");
  CHECK(Described({{"WORLD_SIZE", ""}, {"RANK", ""}, {"TF_CONFIG", ""}}) == "alone");
  CHECK(Described({{"TF_CONFIG", "{}"}}) == "alone");
  CHECK(Described({{"TF_CONFIG", TfConfig("\"h9:1\"", "\"worker\", \"index\": 0")}}) == "alone");
  CHECK(Described({{"LOCAL_RANK", "0"}, {"MASTER_ADDR", "far"}}) == "alone");
  CHECK(
      Described({{"OMPI_COMM_WORLD_SIZE", "1"}, {"PMIX_RANK", "0"}, {"PMI_SIZE", "4"}}) == "alone");
  CHECK(Described({{"DTRUN_JOB", "j"}, {"DTRUN_HOSTS", "h:1"}, {"DTRUN_RANK", "0"}}) == "alone");
  CHECK(PlanOf({}).description == "alone");
}

TEST_CASE("variables of an MPI launcher take precedence over other variables") {
  CHECK(Described(With(kTorch, {{"OMPI_COMM_WORLD_SIZE", "2"}})) == "mpi");
  CHECK(Described({{"PMIX_RANK", "0"}, {"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "2"}}) == "mpi");
  CHECK(
      Described({{"DTRUN_JOB", "j"}, {"DTRUN_HOSTS", "h:2"}, {"OMPI_COMM_WORLD_SIZE", "2"}}) ==
      "mpi");
}

TEST_CASE("variables of dtrun take precedence over all others") {
  const Variables launch = {{"DTRUN_JOB", "j"}, {"DTRUN_HOSTS", "h:2"}, {"DTRUN_RANK", "1"}};
  CHECK(Described(launch) == "1 of 2 at job j");
  CHECK(Described(With(launch, {{"OMPI_COMM_WORLD_SIZE", "7"}})) == "1 of 2 at job j");
  CHECK(
      Described(With(
          launch, {{"WORLD_SIZE", "2"},
                   {"RANK", "0"},
                   {"TF_CONFIG", "no JSON"},
                   {"PMI_SIZE", "4"},
                   {"SLURM_PROCID", "1"},
                   {"SLURM_NTASKS", "8"}})) == "1 of 2 at job j");
  CHECK_THAT(
      RefusalOf({{"DTRUN_JOB", "j"}, {"DTRUN_HOSTS", "h:2"}}),
      Catch::StartsWith("invalid: found DTRUN_JOB of a job of 2 ranks, but mpirun did"));
  CHECK_THAT(
      RefusalOf(With(launch, {{"DTRUN_HOSTS", "h:1"}, {"DTRUN_RANK", "0"}, {"WORLD_SIZE", "2"}})),
      Catch::StartsWith(
          "invalid: dtrun started 1 rank, but WORLD_SIZE is 2; expected one launcher"));
}

TEST_CASE("the variables of torchrun give a job on this host") {
  CHECK(Described(kTorch) == "3 of 4 at address localhost:29500");
  CHECK(
      Described(With(kTorch, {{"LOCAL_RANK", "3"}, {"LOCAL_WORLD_SIZE", "4"}})) ==
      "3 of 4 at address localhost:29500");
  CHECK(Described(With(kTorch, {{"OMPI_COMM_WORLD_SIZE", "1"}})) == Described(kTorch));
  CHECK(
      Described(With(kTorch, {{"SLURM_PROCID", "3"}, {"SLURM_NTASKS", "4"}})) == Described(kTorch));
  CHECK(PlanOf(kTorch).description == "by MASTER_ADDR and MASTER_PORT, on this host");
}

TEST_CASE("missing and contradictory variables are named") {
  const auto without = [](const char* name) {
    Variables rest = kTorch;
    rest.erase(name);
    return RefusalOf(rest);
  };
  const std::string alone = " (set DTRUN_ALONE=1 for a world of one)";
  for (const char* name : {"RANK", "MASTER_ADDR", "MASTER_PORT"})
    CHECK(
        without(name) == std::string("invalid: environment variable ") + name +
                             " is missing, but WORLD_SIZE is 4" + alone);
  CHECK(
      without("WORLD_SIZE") ==
      "invalid: environment variable WORLD_SIZE is missing, but RANK is 3" + alone);
  const auto with = [](const char* name, const char* value) {
    return RefusalOf(With(kTorch, {{name, value}}));
  };
  const std::string contradicts = "invalid: the environment contradicts itself: ";
  CHECK(with("RANK", "4") == contradicts + "RANK is 4, but WORLD_SIZE is 4" + alone);
  CHECK(with("WORLD_SIZE", "1") == contradicts + "RANK is 3, but WORLD_SIZE is 1" + alone);
  CHECK(
      with("LOCAL_WORLD_SIZE", "5") ==
      contradicts + "LOCAL_WORLD_SIZE is 5, but WORLD_SIZE is 4" + alone);
  CHECK(with("LOCAL_RANK", "4") == contradicts + "LOCAL_RANK is 4, but WORLD_SIZE is 4" + alone);
  CHECK(
      with("TF_CONFIG", "{\"cluster\": {\"worker\": [\"h1:1\", \"h1:2\"]}}") ==
      contradicts + "WORLD_SIZE is 4, but TF_CONFIG has 2 tasks" + alone);
  CHECK(
      with("WORLD_SIZE", "four") ==
      "invalid: environment variable WORLD_SIZE is 'four'; expected a number from 1 to 1000000");
  CHECK_THAT(with("RANK", "-1"), Catch::Contains("RANK is '-1'; expected a number from 0"));
  CHECK_THAT(with("MASTER_PORT", "0"), Catch::Contains("expected a number from 1 to 65535"));
}

TEST_CASE("ranks on several hosts are refused with the dtrun command to type") {
  const auto line = [](const Variables& more) {
    const std::string refusal = RefusalOf(With(kTorch, more));
    CHECK_THAT(refusal, Catch::StartsWith("unavailable: "));
    const size_t begin = refusal.find("type instead: ") + 14;
    return refusal.substr(begin, refusal.find("   (set DTRUN_ALONE=1") - begin);
  };
  CHECK(
      line({{"LOCAL_WORLD_SIZE", "2"}, {"MASTER_ADDR", "h0"}}) ==
      "dtrun -np 4 -H h0:2,h1:2 ./train 'a b'");
  CHECK(
      line({{"LOCAL_WORLD_SIZE", "2"}, {"MASTER_ADDR", "h1"}}) ==
      "dtrun -np 4 -H h1:2,HOST2:2 ./train 'a b'");
  CHECK(
      line({{"MASTER_ADDR", "fd00::9"}}) ==
      "dtrun -np 4 -H '[fd00::9]:SLOTS,h1:SLOTS' ./train 'a b'");
  CHECK(
      line({{"WORLD_SIZE", "2"}, {"RANK", "1"}, {"MASTER_ADDR", "h0"}}) ==
      "dtrun -np 2 -H h0:1,h1:1 ./train 'a b'");
  CHECK_THAT(
      RefusalOf(With(kTorch, {{"MASTER_ADDR", "h0"}})),
      Catch::Contains("MASTER_ADDR is h0, which is not this host"));
}

const Variables kSecret = {{"DTRUN_JOB_SECRET", "0123456789abcdef"}};

// "rank of size meets at host:port", with the name of this host if the plan has one.
std::string MeetingOf(const Variables& variables) {
  const JoinPlan plan = PlanOf(variables);
  REQUIRE(plan.way == Way::kStore);
  return dtrun::base::Text(
      plan.rank, " of ", plan.size, " meets at ", plan.place.host, ':', plan.place.port,
      plan.host.empty() ? "" : " on " + plan.host);
}

TEST_CASE("ranks on several hosts that share a secret meet at the master's address") {
  const Variables far = With(With(kTorch, kSecret), {{"MASTER_ADDR", "h0"}});
  CHECK(MeetingOf(far) == "3 of 4 meets at h0:29500");
  CHECK(
      MeetingOf(With(far, {{"LOCAL_WORLD_SIZE", "2"}, {"MASTER_ADDR", "h1"}})) ==
      "3 of 4 meets at h1:29500");
  CHECK(MeetingOf(With(far, {{"MASTER_ADDR", "h1"}})) == "3 of 4 meets at h1:29500");
  CHECK(MeetingOf(With(far, {{"DTRUN_MASTER_PORT", "7"}})) == "3 of 4 meets at h0:7");
  // torchrun listens at MASTER_PORT itself.
  CHECK(
      MeetingOf(With(far, {{"TORCHELASTIC_USE_AGENT_STORE", "True"}})) ==
      "3 of 4 meets at h0:29501");
  CHECK(
      MeetingOf(
          With(With(kTorch, {{"MASTER_ADDR", "h0"}}), {{"DTRUN_TRUSTED_NETWORK", "10.0.0.0/8"}})) ==
      "3 of 4 meets at h0:29500");
  // All ranks are on this host.
  CHECK(
      Described(With(far, {{"MASTER_ADDR", "h1"}, {"LOCAL_WORLD_SIZE", "4"}})) ==
      "3 of 4 at address h1:29500");
  CHECK(Described(With(kTorch, kSecret)) == "3 of 4 at address localhost:29500");
}

TEST_CASE("the tasks of a TF_CONFIG that share a secret meet at the first task's address") {
  CHECK(
      MeetingOf(With(kSecret, {{"TF_CONFIG", TfConfig("\"h2:9\", \"h1:8\"")}})) ==
      "1 of 2 meets at h2:9 on h1");
  CHECK(
      RefusalOf(With(kSecret, {{"TF_CONFIG", TfConfig("\"h2:http\", \"h1:8\"")}})) ==
      "invalid: environment variable TF_CONFIG: the first task is h2:http; expected a port from 1 "
      "to 65535, where the ranks meet");
}

TEST_CASE("ranks that Slurm or another MPI has numbered meet at the master's address") {
  const Variables master = With(kSecret, {{"MASTER_ADDR", "h0"}, {"MASTER_PORT", "5"}});
  CHECK(
      MeetingOf(With(master, {{"SLURM_PROCID", "2"}, {"SLURM_NTASKS", "4"}})) ==
      "2 of 4 meets at h0:5");
  CHECK(
      MeetingOf(With(master, {{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MPI_LOCALNRANKS", "1"}})) ==
      "1 of 2 meets at h0:5");
  CHECK(
      PlanOf(With(master, {{"SLURM_PROCID", "2"}, {"SLURM_NTASKS", "4"}})).description ==
      "by MASTER_ADDR and MASTER_PORT, as rank of Slurm");
}

TEST_CASE("ranks that another MPI's launcher serves ask it where they meet") {
  const Variables hydra = {
      {"PMI_RANK", "1"},
      {"PMI_SIZE", "4"},
      {"PMI_FD", "9"},
      {"MPI_LOCALNRANKS", "2"},
      {"MPIR_CVAR_CH3_INTERFACE_HOSTNAME", "n7"}};
  const JoinPlan plan = PlanOf(hydra);
  CHECK(plan.way == Way::kPmi);
  CHECK((plan.rank == 1 && plan.size == 4 && plan.pmi_file == 9 && !plan.one_host));
  CHECK(plan.place.host == "n7");
  CHECK(plan.description == "by MPICH's or Intel MPI's launcher");
  CHECK(PlanOf(With(hydra, {{"MPI_LOCALNRANKS", "4"}})).one_host);
  const Variables master = With(kSecret, {{"MASTER_ADDR", "h0"}, {"MASTER_PORT", "5"}});
  CHECK(MeetingOf(With(hydra, master)) == "1 of 4 meets at h0:5");
}

TEST_CASE("dtrun's ranks on several hosts meet at the master's address") {
  const Variables launch = {{"DTRUN_JOB", "j"}, {"DTRUN_HOSTS", "h:2,k:1"}, {"DTRUN_RANK", "2"}};
  CHECK(
      MeetingOf(With(launch, {{"MASTER_ADDR", "10.0.0.9"}, {"MASTER_PORT", "5"}})) ==
      "2 of 3 meets at 10.0.0.9:5");
  CHECK(
      RefusalOf(launch) ==
      "invalid: MASTER_ADDR is '' and MASTER_PORT ''; expected an address of the first host and a "
      "port, where the ranks meet");
}

TEST_CASE("a weak secret and an invalid network are refused by name") {
  const auto refusal = [](const Variables& trust) {
    return RefusalOf(With(With(kTorch, {{"MASTER_ADDR", "h0"}}), trust));
  };
  CHECK(
      refusal({{"DTRUN_JOB_SECRET", "short"}}) ==
      "invalid: environment variable DTRUN_JOB_SECRET has 5 bytes; expected at least 16");
  CHECK(
      refusal({{"DTRUN_TRUSTED_NETWORK", "10.0.0.0/8,home"}}) ==
      "invalid: environment variable DTRUN_TRUSTED_NETWORK is '10.0.0.0/8,home'; expected IPv4 "
      "networks, such as 10.1.0.0/16");
}

TEST_CASE("a TF_CONFIG gives a job on this host or an error with the dtrun command to type") {
  CHECK(
      Described({{"TF_CONFIG", TfConfig("\"h1:1\", \"10.0.0.1:2\", \"[::1]:3\"")}}) ==
      "1 of 3 at TF_CONFIG h1:1,10.0.0.1:2,[::1]:3");
  CHECK(
      Described(
          {{"TF_CONFIG",
            "{\"cluster\": {\"worker\": [\"h1:1\"], \"chief\": [\"h1:2\"]}, "
            "\"task\": {\"type\": \"worker\", \"index\": \"0\"}}"}}) ==
      "1 of 2 at TF_CONFIG h1:2,h1:1");
  CHECK(
      RefusalOf({{"TF_CONFIG", TfConfig("\"h1:1\", \"h1:2\", \"h2:1\"")}}) ==
      "unavailable: TF_CONFIG names h2, which is not this host, and no launcher has started the "
      "ranks: ranks on several hosts need DTRUN_JOB_SECRET, 16 or more random characters, the same "
      "on all hosts; type instead: dtrun -H h1:2,h2:1 ./train 'a b'   (set DTRUN_ALONE=1 for a "
      "world of "
      "one)");
}

TEST_CASE("an invalid TF_CONFIG is refused with its content") {
  const auto refusal = [](const std::string& text) { return RefusalOf({{"TF_CONFIG", text}}); };
  const std::string start = "invalid: environment variable TF_CONFIG: ";
  CHECK(refusal("oops") == start + "found 'oops', expected a JSON object");
  CHECK(refusal("[1]") == start + "found '[1]', expected a JSON object");
  CHECK(
      refusal("{\"cluster\": 3}") == start + "cluster is not an object of lists of \"host:port\"");
  CHECK_THAT(
      refusal("{\"cluster\": {\"worker\": [\"a:1\"], \"evaluator\": [\"a:2\"]}}"),
      Catch::Contains("expected one evaluator, in a cluster with parameter servers (ps)"));
  CHECK_THAT(
      refusal(TfConfig("\"h1\", 7")),
      Catch::StartsWith(start + "cluster.worker holds '\"h1\"', expected \"host:port\""));
  // As many nested brackets as a variable can hold. The JSON library prints a list recursively.
  CHECK(
      refusal(TfConfig(std::string(65'000, '[') + std::string(65'000, ']'))) ==
      start + "cluster.worker holds an array, expected \"host:port\"");
  CHECK(
      refusal(TfConfig("\"h1:1\", \"h1:2\"", "\"worker\", \"index\": 2")) ==
      start +
          "task.index is '2'; expected a number below 2, the number of tasks in cluster.worker");
  CHECK(
      refusal(TfConfig("\"h1:1\", \"h1:2\"", "\"evaluator\"")) ==
      start + "task.type is 'evaluator', but cluster.evaluator has no task");
  CHECK(
      refusal(TfConfig("\"h1:1\", \"h1:2\"", "\"driver\"")) ==
      start + "task.type is 'driver'; expected ps, chief, master, worker or evaluator");
  CHECK_THAT(
      refusal("{\"cluster\": {\"worker\": [\"h1:1\", \"h1:2\"]}}"),
      Catch::Contains(
          "no task.type and task.index for this process; type instead: dtrun -H h1:2 ./train"));
}

TEST_CASE("a TF_CONFIG with parameter servers describes a launch on this host") {
  const auto launch = [](const std::string& host, const std::string& task) {
    const std::string text = "{\"cluster\": {\"worker\": [\"h1:1\"], \"ps\": [\"" + host +
                             ":2\", \"h1:3\"], \"evaluator\": [\"h1:4\"]}, \"task\": {" + task +
                             "}}";
    return LaunchByTfConfig(
        [&](const std::string& name) {
          return name == "TF_CONFIG" ? std::optional(text) : std::nullopt;
        },
        kMachine);
  };
  const auto worker = launch("h1", "\"type\": \"worker\", \"index\": 0");
  REQUIRE(worker);
  CHECK(worker->servers == 2);
  CHECK(worker->evaluator);
  CHECK(worker->rank == 2);
  CHECK(worker->hosts == std::vector<dtrun::base::HostSlots>{{"h1", 4}});
  CHECK(launch("h1", "\"type\": \"evaluator\", \"index\": 0")->rank == 3);
  CHECK(launch("h1", "\"type\": \"ps\", \"index\": 1")->job == worker->job);
  CHECK_THROWS_WITH(
      launch("h2", "\"type\": \"worker\", \"index\": 0"),
      Catch::Contains("TF_CONFIG names h2, which is not this host") &&
          Catch::Contains("type instead: dtrun --ps 2 -H h2:1,h1:3 ./train"));
}

TEST_CASE("the launcher of another MPI is named") {
  CHECK(
      RefusalOf({{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}, {"MPI_LOCALNRANKS", "2"}}) ==
      "unavailable: MPICH's or Intel MPI's launcher has started this process (PMI_SIZE is 2); "
      "dtrun works with Open MPI 4 or 5; type instead: dtrun -np 2 ./train 'a b'   (set "
      "DTRUN_ALONE=1 for a world of one)");
  CHECK_THAT(
      RefusalOf({{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}, {"I_MPI_MPIRUN", "mpirun"}}),
      Catch::StartsWith("unavailable: Intel MPI's launcher"));
  CHECK_THAT(RefusalOf({{"MPI_LOCALNRANKS", "4"}}), Catch::Contains("MPICH's or Intel MPI's"));
  CHECK_THAT(
      RefusalOf({{"PMI_RANK", "4"}, {"PMI_SIZE", "4"}, {"PMI_FD", "9"}}),
      Catch::Contains("MPICH's or Intel MPI's"));
  CHECK_THAT(RefusalOf({{"MV2_COMM_WORLD_SIZE", "4"}}), Catch::Contains("MVAPICH's"));
  CHECK(Described({{"PMI_RANK", "0"}, {"PMI_SIZE", "1"}, {"MPI_LOCALNRANKS", "1"}}) == "alone");
}

// Task 2 of 4 of a step on one node.
const Variables kStep = {{"SLURM_NTASKS", "9"},         {"SLURM_STEP_NUM_TASKS", "4"},
                         {"SLURM_PROCID", "2"},         {"SLURM_JOB_ID", "41"},
                         {"SLURM_STEP_ID", "3"},        {"SLURM_STEP_NUM_NODES", "1"},
                         {"SLURM_STEP_NODELIST", "h1"}, {"PMI_RANK", "2"}};

TEST_CASE("the tasks of srun on one node meet there without PMIx") {
  CHECK(PlanOf(kStep).way == Way::kLocal);
  CHECK(Described(kStep) == "2 of 4 at Slurm 41.3 0");
  CHECK(Described(With(kStep, {{"SLURM_RESTART_COUNT", "1"}})) == "2 of 4 at Slurm 41.3 1");
  CHECK(PlanOf(kStep).description == "by Slurm, on this host");
}

TEST_CASE("the tasks of srun on several nodes meet at the first node of the step") {
  const auto place = [](const std::string& nodes, const Variables& more = {}) {
    const Variables several = {{"SLURM_STEP_NUM_NODES", "2"}, {"SLURM_STEP_NODELIST", nodes}};
    return MeetingOf(With(With(With(kStep, kSecret), several), more));
  };
  CHECK(place("n1,n2") == "2 of 4 meets at n1:20344");
  CHECK(place("node[01-04,07],other") == "2 of 4 meets at node01:20344");
  CHECK(place("rack[2,5]-n[010-012]x") == "2 of 4 meets at rack2-n010x:20344");
  CHECK(place("n1,n2", {{"SLURMD_NODENAME", "n2"}}) == "2 of 4 meets at n1:20344 on n2");
  CHECK(place("n1,n2", {{"SLURM_JOB_ID", "2147483647"}}) == "2 of 4 meets at n1:23950");
  CHECK(place("n1,n2", {{"SLURM_STEP_RESV_PORTS", "12000-12001"}}) == "2 of 4 meets at n1:12000");
  CHECK(place("n1,n2", {{"DTRUN_MASTER_PORT", "9"}}) == "2 of 4 meets at n1:9");
  CHECK(place("n1,n2", {{"MASTER_ADDR", "h"}, {"MASTER_PORT", "5"}}) == "2 of 4 meets at h:5");
}

TEST_CASE("tasks of srun that cannot find each other are refused with the line to type") {
  const Variables several = With(kStep, {{"SLURM_STEP_NUM_NODES", "2"}});
  const std::string refusal = RefusalOf(several);
  CHECK(
      refusal ==
      "unavailable: this process is task 2 of 4, started by Slurm without PMIx: ranks on several "
      "hosts need DTRUN_JOB_SECRET, 16 or more random characters, the same on all hosts; type "
      "instead: srun --mpi=pmix ./train 'a b' or, in the allocation: dtrun ./train 'a b'   (set "
      "DTRUN_ALONE=1 for a world of one)");
  const Variables trusted = With(several, kSecret);
  for (const Variables& unknown :
       {Variables{{"SLURM_STEP_NODELIST", "n[1-2"}}, Variables{{"SLURM_DISTRIBUTION", "arbitrary"}},
        Variables{{"SLURM_HET_SIZE", "2"}}})
    CHECK_THAT(RefusalOf(With(trusted, unknown)), Catch::Contains("srun --mpi=pmix ./train"));
  CHECK_THAT(RefusalOf(With(trusted, {{"SLURM_JOB_ID", "x"}})), Catch::Contains("SLURM_JOB_ID"));
}

TEST_CASE("a batch script of Slurm is no rank and one process in an allocation is alone") {
  CHECK_THAT(
      RefusalOf({{"SLURM_NTASKS", "4"}, {"SLURM_PROCID", "0"}}),
      Catch::Contains("this process is task 0 of 4, not started by srun (SLURM_STEP_NUM_TASKS is "
                      "not set); type instead: srun --mpi=pmix"));
  const Variables pmi2 = {{"SLURM_NTASKS", "4"}, {"SLURM_PROCID", "2"}, {"PMI_RANK", "2"}};
  CHECK_THAT(RefusalOf(With(pmi2, {{"MPI_LOCALNRANKS", "4"}})), Catch::Contains("MPICH's"));
  CHECK(Described({{"SLURM_NTASKS", "4"}, {"SLURM_JOB_ID", "1"}}) == "alone");
  CHECK(Described({{"SLURM_NTASKS", "1"}, {"SLURM_PROCID", "0"}}) == "alone");
  CHECK(
      Described({{"SLURM_NTASKS", "4"}, {"SLURM_PROCID", "0"}, {"SLURM_STEP_NUM_TASKS", "1"}}) ==
      "alone");
}

TEST_CASE("DTRUN_ALONE makes a world of one rank from any variables") {
  const Variables alone = {{"DTRUN_ALONE", "1"}};
  CHECK(Described(With(kTorch, alone)) == "alone");
  CHECK(Described({{"SLURM_NTASKS", "4"}, {"SLURM_PROCID", "2"}, {"DTRUN_ALONE", "1"}}) == "alone");
  CHECK(Described({{"TF_CONFIG", "no JSON"}, {"DTRUN_ALONE", "1"}}) == "alone");
  CHECK(Described({{"OMPI_COMM_WORLD_SIZE", "2"}, {"DTRUN_ALONE", "1"}}) == "alone");
  CHECK(Described(With(kTorch, {{"DTRUN_ALONE", "0"}})) == Described(kTorch));
  CHECK(
      RefusalOf({{"DTRUN_ALONE", "yes"}}) ==
      "invalid: environment variable DTRUN_ALONE is 'yes'; expected a number from 0 to 1");
}

}  // namespace
