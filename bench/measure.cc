#include "bench/measure.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <fstream>

extern char** environ;

namespace dtrun::bench {
namespace {

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// The value of a variable of Open MPI in this process, whether a file, the environment or its own
// judgement set it.
bool ReadPeerFlag(const char* name) {
  int provided = 0, index = 0, count = 0, value = 0;
  MPI_T_cvar_handle handle;
  if (MPI_T_init_thread(MPI_THREAD_SINGLE, &provided) != MPI_SUCCESS) return false;
  if (MPI_T_cvar_get_index(name, &index) == MPI_SUCCESS &&
      MPI_T_cvar_handle_alloc(index, nullptr, &handle, &count) == MPI_SUCCESS) {
    MPI_T_cvar_read(handle, &value);
    MPI_T_cvar_handle_free(&handle);
  }
  MPI_T_finalize();
  return value != 0;
}

// What mpirun and dtrun tell the ranks besides how to communicate.
bool StartsRanks(const std::string& variable) {
  for (const char* part :
       {"orte_", "ess", "pmix", "plm", "odls", "rmaps", "hwloc", "initial_wdir", "shmem_RUNTIME",
        "mpi_oversubscribe", "btl_sm_backing", "btl_vader_backing"}) {
    if (variable.rfind(std::string("OMPI_MCA_") + part, 0) == 0) return true;
  }
  return false;
}

}  // namespace

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

std::vector<double> MeasureInTurn(
    Communicator& comm, const std::vector<std::function<void()>>& sides, int least_rounds,
    Warmth warmth) {
  const auto timed = [&](const std::function<void()>& call, int batch) {
    comm.Barrier();
    const double start = Now();
    for (int i = 0; i < batch; ++i) call();
    double seconds = (Now() - start) / batch;
    comm.AllReduce(Buffer(&seconds, 1), ReduceOp::kMax);
    return seconds * 1e6;
  };
  // Calls of half a second and more need no more than one to be warm.
  double once = 0.01;
  std::vector<bool> cools_down;
  for (const auto& side : sides) {
    double warm = 0;
    for (int i = 0; i < 3 && warm < 5e5; ++i) warm = timed(side, 1);
    once = std::max(once, warm < 5e5 ? timed(side, 3) : warm);
    cools_down.push_back(warmth == Warmth::kWarm && warm < 1e6);
  }
  const int batch = static_cast<int>(std::clamp(2000 / once, 1.0, 1000.0));
  const double least = least_rounds, most = std::max(least, 201.0);
  const int rounds = static_cast<int>(std::clamp(1e6 / (once * batch), least, most));
  std::vector<std::vector<double>> times(sides.size());
  for (int i = 0; i < rounds; ++i) {
    for (size_t side = 0; side < sides.size(); ++side) {
      if (cools_down[side]) timed(sides[side], 1);
      times[side].push_back(timed(sides[side], batch));
    }
  }
  std::vector<double> medians;
  for (const std::vector<double>& of_side : times) medians.push_back(Median(of_side));
  return medians;
}

Times Measure(Communicator& comm, CollectiveCase& measured, int least_rounds) {
  std::vector<std::function<void()>> sides = {[&] { measured.Ours(); }};
  if (measured.has_peer()) sides.emplace_back([&] { measured.Peers(); });
  const std::vector<double> times = MeasureInTurn(comm, sides, least_rounds);
  return {times[0], measured.has_peer() ? times[1] : 0};
}

MemorySpeed MeasureMemorySpeed(Communicator& comm) {
  constexpr size_t kBytes = 64 << 20;
  std::vector<float> first(kBytes / sizeof(float), 1), second(first);
  // Seconds until the last rank is done, the median.
  const auto timed = [&](const auto& work) {
    std::vector<double> times;
    for (int i = 0; i < 15; ++i) {
      comm.Barrier();
      const double start = Now();
      work();
      comm.Barrier();
      double seconds = Now() - start;
      comm.AllReduce(Buffer(&seconds, 1), ReduceOp::kMax);
      times.push_back(seconds);
    }
    return Median(times);
  };
  const double copy = timed([&] {
    if (comm.rank() == 0) std::memcpy(second.data(), first.data(), kBytes);
  });
  const double in_place = timed([&] {
    float* __restrict a = first.data();
    float* __restrict b = second.data();
    for (size_t i = 0; i < first.size(); ++i) a[i] = b[i] = a[i] + b[i];
  });
  return {kBytes / copy / 1e9, comm.size() * 4.0 * kBytes / in_place / 1e9};
}

// The lowest rank of those that share a kernel: hosts may be namespaces of one machine.
bool SpeaksForItsKernel(Context& job) {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string boot;
  std::getline(file, boot);
  const std::vector<std::string> boots = dtrun::AllGatherBytes(job.world(), boot);
  return std::find(boots.begin(), boots.end(), boot) - boots.begin() == job.rank();
}

double ForeignShare(Context& job, const CpuWatch& watch) {
  double own = watch.OwnSeconds();
  double host[2] = {0, 0};
  if (SpeaksForItsKernel(job)) {
    host[0] = watch.HostSeconds();
    host[1] = watch.AvailableSeconds();
  }
  job.world().AllReduce(Buffer(&own, 1));
  job.world().AllReduce(Buffer(host, 2));
  return std::max(0.0, host[0] - own) / host[1];
}

PeerSettings ReadPeerSettings() {
  PeerSettings settings;
  char version[MPI_MAX_LIBRARY_VERSION_STRING] = {};
  int length = 0;
  MPI_Get_library_version(version, &length);
  settings.version = std::string(version).substr(0, std::string(version).find(','));
  settings.yields_when_idle = ReadPeerFlag("mpi_yield_when_idle");
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string variable = *entry;
    if (variable.rfind("OMPI_MCA_", 0) == 0 && !StartsRanks(variable)) {
      settings.variables.push_back(variable);
    }
  }
  std::sort(settings.variables.begin(), settings.variables.end());
  return settings;
}

bool Oversubscribed(const Context& job) {
  return job.local_size() > ::sysconf(_SC_NPROCESSORS_ONLN);
}

}  // namespace dtrun::bench
