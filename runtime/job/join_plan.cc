// The launcher nearest to the process decides how the process joins. dtrun is first, then launchers
// that MPI can ask, then variables of PyTorch or TensorFlow that are set by hand. Any other
// environment that describes several ranks is refused.

#include "runtime/job/join_plan.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <fstream>
#include <iterator>
#include <vector>

#include "base/text.h"
#include "dtrun/error.h"
#include "runtime/job/join_by_hand.h"

namespace dtrun::runtime {
namespace {

using base::Text;
using Way = JoinPlan::Way;

constexpr char kAlone[] = "DTRUN_ALONE";

std::string Command(std::vector<std::string> words, const Machine& machine) {
  for (const std::string& word : machine.command()) words.push_back(word);
  return ShellLine(words);
}

JoinPlan ThroughMpi() { return {.way = Way::kMpi, .description = "through MPI"}; }

// Throws if WORLD_SIZE contradicts dtrun's number of ranks. Then a rank of dtrun ran another
// launcher, and this process inherited dtrun's variables.
void CheckNoLauncherBetween(const base::GetEnv& get, int ranks) {
  const std::optional<std::string> size = ValueOf(get, "WORLD_SIZE");
  if (!size || *size == Text(ranks)) return;
  throw Error(
      ErrorCode::kInvalidArgument,
      Text(
          "dtrun started ", ranks, ranks == 1 ? " rank" : " ranks", ", but WORLD_SIZE is ", *size,
          "; expected one launcher: start the program with dtrun or with the other launcher (set "
          "DTRUN_ALONE=1 for a world of one)"));
}

// dtrun has started the ranks of several hosts without MPI. Rank 0's host has the address.
JoinPlan AcrossHosts(const base::GetEnv& get, const base::LaunchEnv& launch) {
  const std::string host = ValueOf(get, "MASTER_ADDR").value_or("");
  const int port = NumberOf(get, "MASTER_PORT", 1, 65535).value_or(0);
  if (host.empty() || port == 0)
    throw Error(
        ErrorCode::kInvalidArgument,
        Text(
            "MASTER_ADDR is '", host, "' and MASTER_PORT '",
            ValueOf(get, "MASTER_PORT").value_or(""),
            "'; expected an address of the first host and a port, where the ranks meet"));
  return {
      .way = Way::kStore,
      .description = "by dtrun",
      .meeting = "job " + launch.job,
      .rank = base::RankOf(launch, launch.rank),
      .size = base::RankCount(launch.hosts),
      .place = {host, port}};
}

JoinPlan ByDtrun(const base::GetEnv& get, const base::LaunchEnv& launch, bool by_mpi) {
  const int ranks = base::RankCount(launch.hosts);
  const bool may_change = !launch.epoch_file.empty();  // and WORLD_SIZE is the first number
  if (!may_change) CheckNoLauncherBetween(get, ranks);
  const JoinPlan local = {
      .way = Way::kLocal,
      .description = "by dtrun, on this host",
      .meeting = "job " + launch.job,
      .rank = base::RankOf(launch, launch.rank),
      .size = ranks};
  if (launch.servers > 0) {
    if (launch.rank >= 0)
      return {
          .way = Way::kApart,
          .description = "to parameter servers",
          .rank = launch.rank,
          .size = ranks};
    throw Error(
        ErrorCode::kInvalidArgument,
        "found DTRUN_JOB of a job with parameter servers, but no rank of this process; start the "
        "program with dtrun, or unset DTRUN_JOB");
  }
  if (ranks == 1 && (launch.rank >= 0 || !by_mpi)) return {};
  if (launch.rank >= 0) return launch.hosts.size() == 1 ? local : AcrossHosts(get, launch);
  if (by_mpi) return ThroughMpi();
  throw Error(
      ErrorCode::kInvalidArgument,
      Text(
          "found DTRUN_JOB of a job of ", ranks,
          " ranks, but mpirun did not start this process; start the program with dtrun, or unset "
          "DTRUN_JOB"));
}

// The launcher of MPICH, Intel MPI or MVAPICH may have started this process as one of several. It
// sets the variables below. Throws if neither the user nor the launcher tells where the ranks meet.
std::optional<JoinPlan> JoinByOtherMpi(const base::GetEnv& get, const Machine& machine) {
  struct Row {
    const char* rank;
    const char* size;
    const char* name;
  };
  for (const Row& row :
       {Row{"MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MVAPICH's"},
        Row{"PMI_RANK", "PMI_SIZE", "MPICH's or Intel MPI's"},
        Row{"MPI_LOCALRANKID", "MPI_LOCALNRANKS", "MPICH's or Intel MPI's"}}) {
    const std::optional<std::string> rank = ValueOf(get, row.rank);
    const std::optional<std::string> size = ValueOf(get, row.size);
    if ((!rank && !size) || size.value_or("") == "1") continue;
    const std::string name = get("I_MPI_MPIRUN") ? "Intel MPI's" : row.name;
    const std::optional<int> number = NumberOf(get, row.rank, 0),
                             count = NumberOf(get, row.size, 1);
    // MPI_LOCALRANKID counts the ranks of one host alone.
    if (number && count && std::string(row.rank) != "MPI_LOCALRANKID")
      if (auto plan = PlanByNumber(get, *number, *count, name + " launcher")) return plan;
    if (const auto file = NumberOf(get, "PMI_FD", 0); file && number && count && *number < *count)
      return JoinPlan{
          .way = Way::kPmi,
          .description = "by " + name + " launcher",
          .rank = *number,
          .size = *count,
          .place = {ValueOf(get, "MPIR_CVAR_CH3_INTERFACE_HOSTNAME").value_or(machine.host_name)},
          .pmi_file = *file,
          .one_host = NumberOf(get, "MPI_LOCALNRANKS", 1) == *count};
    throw Error(
        ErrorCode::kUnavailable,
        Text(
            name, " launcher has started this process (", size ? row.size : row.rank, " is ",
            size ? *size : *rank, "); dtrun works with Open MPI 4 or 5",
            InsteadType(Command({"dtrun", "-np", size.value_or("N")}, machine))));
  }
  return std::nullopt;
}

// The first name in a node list of Slurm: "rack[2-3]node[01-04,7],login" -> "rack2node01". "": the
// list is damaged.
std::string FirstNode(const std::string& list) {
  std::string first;
  for (size_t i = 0; i < list.size() && list[i] != ','; ++i) {
    if (list[i] != '[') {
      first += list[i];
      continue;
    }
    const size_t end = list.find_first_of(",-]", i);
    i = list.find(']', i);
    if (i == std::string::npos) return "";
    const size_t open = list.rfind('[', i);
    first += list.substr(open + 1, end - open - 1);
  }
  return first;
}

// Where the tasks of a step on several hosts meet. Without a port that Slurm has reserved
// (srun --resv-ports), each step has a port of its own, below those that the kernel gives away.
int PortOfStep(const base::GetEnv& get, int job, int step) {
  constexpr int kFirst = 20000, kCount = 10000;
  const std::string reserved = ValueOf(get, "SLURM_STEP_RESV_PORTS").value_or("");
  const auto first = base::ParseInteger(reserved.substr(0, reserved.find_first_of(",-")));
  const int own = first && *first >= 1 && *first <= 65535 ? static_cast<int>(*first)
                                                          : kFirst + (job + step * 101) % kCount;
  return NumberOf(get, "DTRUN_MASTER_PORT", 1, 65535).value_or(own);
}

// The tasks of a Slurm step meet on its only host, or on the first host of its node list, where
// Slurm starts task 0. nullopt if the variables do not tell which host that is.
std::optional<JoinPlan> PlanByStep(const base::GetEnv& get, int rank, int size) {
  constexpr int kMostId = 2'147'483'647;
  const std::optional<int> job = NumberOf(get, "SLURM_JOB_ID", 0, kMostId),
                           step = NumberOf(get, "SLURM_STEP_ID", 0, kMostId),
                           hosts = NumberOf(get, "SLURM_STEP_NUM_NODES", 1, kMostId);
  const std::string first = FirstNode(ValueOf(get, "SLURM_STEP_NODELIST").value_or(""));
  const bool ordered = ValueOf(get, "SLURM_DISTRIBUTION") != "arbitrary";
  const bool single = !ValueOf(get, "SLURM_HET_SIZE");  // else a step has several node lists
  if (!job || !step || !hosts || !single) return std::nullopt;
  JoinPlan plan = {
      .way = Way::kLocal,
      .description = "by Slurm, on this host",
      .meeting =
          Text("Slurm ", *job, '.', *step, ' ', ValueOf(get, "SLURM_RESTART_COUNT").value_or("0")),
      .rank = rank,
      .size = size};
  if (*hosts == 1) return plan;
  if (first.empty() || !ordered || ReadTrust(get).empty()) return std::nullopt;
  plan.way = Way::kStore;
  plan.description = "by Slurm";
  plan.place = {first, PortOfStep(get, *job % 10000, *step % 10000)};
  plan.host = ValueOf(get, "SLURMD_NODENAME").value_or("");
  return plan;
}

// This process may be one of several tasks of a Slurm step. Those tasks are ranks. A single process
// in an allocation is no rank. Throws if the tasks cannot find each other.
std::optional<JoinPlan> JoinBySlurm(const base::GetEnv& get, const Machine& machine) {
  const std::optional<std::string> task = ValueOf(get, "SLURM_PROCID");
  const std::optional<std::string> of_step = ValueOf(get, "SLURM_STEP_NUM_TASKS");
  const std::string tasks = of_step ? *of_step : ValueOf(get, "SLURM_NTASKS").value_or("1");
  if (!task || tasks == "1") return std::nullopt;
  const int rank = *NumberOf(get, "SLURM_PROCID", 0);
  const int size = static_cast<int>(base::ParseInteger(tasks).value_or(0));
  if (size > 1)
    if (const auto plan = PlanByNumber(get, rank, size, "Slurm")) return plan;
  if (size > rank && of_step)
    if (const auto plan = PlanByStep(get, rank, size)) return plan;
  const std::string why = of_step ? Text("started by Slurm without PMIx: ", kNeedsSecret)
                                  : "not started by srun (SLURM_STEP_NUM_TASKS is not set)";
  throw Error(
      ErrorCode::kUnavailable, Text(
                                   "this process is task ", *task, " of ", tasks, ", ", why,
                                   "; type instead: ", Command({"srun", "--mpi=pmix"}, machine),
                                   " or, in the allocation: ", Command({"dtrun"}, machine),
                                   "   (set DTRUN_ALONE=1 for a world of one)"));
}

}  // namespace

bool WantsToBeAlone(const base::GetEnv& get) {
  return NumberOf(get, kAlone, 0, 1).value_or(0) == 1;
}

namespace {

// Open MPI's own launcher sets the size. Launchers that speak PMIx (srun --mpi=pmix, prun) do not.
bool IsStartedByMpi(const base::GetEnv& get) {
  const std::optional<std::string> size = ValueOf(get, "OMPI_COMM_WORLD_SIZE");
  return size ? *size != "1" : get("PMIX_RANK").has_value();
}

}  // namespace

std::optional<base::LaunchEnv> LaunchOf(const base::GetEnv& get) {
  const std::optional<base::LaunchEnv> launch = base::ReadLaunchEnv(get);
  if (launch || IsStartedByMpi(get)) return launch;
  return LaunchByTfConfig(get, ThisMachine());
}

JoinPlan PlanJoin(
    const base::GetEnv& get, const std::optional<base::LaunchEnv>& launch, const Machine& machine) {
  if (WantsToBeAlone(get)) return {.description = "alone (DTRUN_ALONE=1)"};
  const bool by_mpi = IsStartedByMpi(get);
  if (launch) return ByDtrun(get, *launch, by_mpi);
  if (by_mpi) return ThroughMpi();
  if (const std::optional<JoinPlan> plan = PlanByHand(get, machine)) return *plan;
  if (ValueOf(get, "OMPI_COMM_WORLD_SIZE")) return {};
  // srun also sets PMI_RANK (--mpi=pmi2). MPICH's launcher may itself have used srun.
  if (!ValueOf(get, "MPI_LOCALNRANKS"))
    if (const auto plan = JoinBySlurm(get, machine)) return *plan;
  return JoinByOtherMpi(get, machine).value_or(JoinPlan{});
}

namespace {

std::string OwnHostName() {
  char name[256] = {};
  ::gethostname(name, sizeof name - 1);
  return name;
}

// Only addresses of this machine can be bound.
bool CanBind(const addrinfo& address) {
  const int file = ::socket(address.ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  const bool bound = file >= 0 && ::bind(file, address.ai_addr, address.ai_addrlen) == 0;
  if (file >= 0) ::close(file);
  return bound;
}

bool IsOwn(const std::string& name) {
  if (name == "localhost" || name == OwnHostName()) return true;
  addrinfo hints = {};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* addresses = nullptr;
  if (::getaddrinfo(name.c_str(), nullptr, &hints, &addresses) != 0) return false;
  bool own = false;
  for (const addrinfo* address = addresses; address != nullptr; address = address->ai_next)
    own = own || CanBind(*address);
  ::freeaddrinfo(addresses);
  return own;
}

std::vector<std::string> OwnCommand() {
  std::ifstream stream("/proc/self/cmdline", std::ios::binary);
  std::string text((std::istreambuf_iterator<char>(stream)), std::istreambuf_iterator<char>());
  if (text.empty()) return {"PROGRAM"};
  text.pop_back();  // each word ends with a zero byte
  return base::Split(text, '\0');
}

std::string Quoted(const std::string& word) {
  const bool plain = !word.empty() && std::all_of(word.begin(), word.end(), [](unsigned char c) {
    return c < 128 && (std::isalnum(c) ||
                       std::string("_-./:=,+@%^").find(static_cast<char>(c)) != std::string::npos);
  });
  if (plain) return word;
  std::string quoted = "'";
  for (const char c : word) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

}  // namespace

Machine ThisMachine() { return {OwnHostName(), IsOwn, OwnCommand}; }

std::string ShellLine(const std::vector<std::string>& words) {
  std::vector<std::string> quoted;
  for (const std::string& word : words) quoted.push_back(Quoted(word));
  return base::Join(quoted, " ");
}

}  // namespace dtrun::runtime
