// FindHosts tries the sources in the order of kSources. The first source with a host wins. Hosts
// without a number of slots then get slots_per_host.

#include "launcher/plan/job_options.h"

#include <algorithm>
#include <initializer_list>
#include <optional>
#include <utility>

#include "base/text.h"
#include "launcher/hosts/cluster_environment.h"
#include "launcher/hosts/hosts.h"
#include "launcher/support/launch_error.h"

namespace dtrun::launcher {
namespace {

using base::Text;

using Source = std::vector<Host> (*)(const Options&, const Surroundings&);

std::vector<Host> FromHostList(const Options& options, const Surroundings&) {
  return options.hosts;
}

std::vector<Host> FromHostfile(const Options& options, const Surroundings& surroundings) {
  if (options.hostfile.empty()) return {};
  return ParseHostfile(
      options.hostfile, ReadNamedFile("host file", options.hostfile, surroundings));
}

// In a rank of an outer job, TF_CONFIG describes the outer job.
TfConfig TfConfigOf(const Surroundings& surroundings) {
  const auto text = surroundings.get("TF_CONFIG");
  if (!text || text->empty() || surroundings.get("DTRUN_JOB")) return {};
  return ReadTfConfig(*text);
}

std::vector<Host> FromTfConfig(const Options&, const Surroundings& surroundings) {
  return TfConfigOf(surroundings).hosts;
}

std::vector<Host> FromSlurm(const Options&, const Surroundings& surroundings) {
  const auto nodes = surroundings.get("SLURM_JOB_NODELIST");
  if (!nodes || nodes->empty()) return {};
  return SlurmHosts(*nodes, surroundings.get("SLURM_TASKS_PER_NODE").value_or(""));
}

// The value of the first of these variables that is set; nullopt: none is.
std::optional<std::pair<std::string, std::string>> FirstSet(
    std::initializer_list<const char*> names, const Surroundings& surroundings) {
  for (const char* name : names) {
    const auto value = surroundings.get(name);
    if (value && !value->empty()) return std::pair(name, *value);
  }
  return std::nullopt;
}

std::vector<Host> FromPbsOrLsf(const Options&, const Surroundings& surroundings) {
  const auto file = FirstSet({"PBS_NODEFILE", "LSB_DJOB_HOSTFILE"}, surroundings);
  if (file)
    return SlotFileHosts(file->first, ReadNamedFile(file->first, file->second, surroundings));
  const auto hosts = FirstSet({"LSB_MCPU_HOSTS"}, surroundings);
  return hosts ? LsfHosts(hosts->second) : std::vector<Host>();
}

std::vector<Host> FromGridEngine(const Options&, const Surroundings& surroundings) {
  const auto file = FirstSet({"PE_HOSTFILE"}, surroundings);
  if (!file) return {};
  return GridEngineHosts(ReadNamedFile(file->first, file->second, surroundings));
}

// The variables with which Kubernetes' MPI operator, and others, name a host file to the mpirun of
// Open MPI, Intel MPI and MPICH. In a rank, they describe the outer job.
std::vector<Host> FromMpiHostfile(const Options&, const Surroundings& surroundings) {
  const auto file = FirstSet(
      {"OMPI_MCA_orte_default_hostfile", "PRTE_MCA_prte_default_hostfile", "I_MPI_HYDRA_HOST_FILE",
       "HYDRA_HOST_FILE"},
      surroundings);
  if (!file || surroundings.get("DTRUN_JOB")) return {};
  return ParseHostfile(file->second, ReadNamedFile(file->first, file->second, surroundings));
}

std::vector<Host> ThisHost(const Options& options, const Surroundings&) {
  const int slots = options.slots_per_host > 0 ? options.slots_per_host : options.ranks;
  if (slots == 0) return {};
  return {{"localhost", slots, 0, "this host"}};
}

constexpr Source kSources[] = {FromHostList, FromHostfile,   FromTfConfig,    FromSlurm,
                               FromPbsOrLsf, FromGridEngine, FromMpiHostfile, ThisHost};

}  // namespace

std::string ReadNamedFile(
    const std::string& what, const std::string& path, const Surroundings& surroundings) {
  try {
    return surroundings.read_file(path);
  } catch (const UsageError& error) {
    throw UsageError(Text(what, ' ', error.what()));
  }
}

// Kubernetes starts the launcher's pod before those of the workers can be reached.
void CompleteOptions(Options& options, const Surroundings& surroundings) {
  constexpr int kUntilPodsAnswer = 300;
  if (options.host_wait_s < 0)
    options.host_wait_s = surroundings.get("K_MPI_JOB_ROLE") == "launcher" ? kUntilPodsAnswer : 0;
  if (!options.hosts.empty() || !options.hostfile.empty()) return;
  const TfConfig config = TfConfigOf(surroundings);
  if (config.servers == 0) return;
  const int tasks = static_cast<int>(SlotCount(config.hosts));
  if (options.servers > 0 && options.servers != config.servers)
    throw UsageError(Text(
        "--ps ", options.servers, ": expected ", config.servers,
        ", the number of parameter servers in TF_CONFIG, or no --ps"));
  if (options.ranks > 0 && options.ranks != tasks)
    throw UsageError(Text(
        "-np ", options.ranks, ": expected ", tasks,
        ", the number of tasks in TF_CONFIG, or no -np"));
  options.servers = config.servers;
  options.evaluator = config.evaluator;
}

std::vector<Host> FindHosts(const Options& options, const Surroundings& surroundings) {
  std::vector<Host> hosts;
  for (Source source : kSources) {
    hosts = source(options, surroundings);
    if (!hosts.empty()) break;
  }
  for (Host& host : hosts) {
    if (host.slots > 0) continue;
    host.slots = std::max(options.slots_per_host, 1);
    if (host.max_slots > 0) host.slots = std::min(host.slots, host.max_slots);
  }
  if (SlotCount(hosts) > kMaxRanks)
    throw UsageError(Text(
        hosts[0].origin, ": found ", SlotCount(hosts), " slots; expected at most ", kMaxRanks));
  return hosts;
}

}  // namespace dtrun::launcher
