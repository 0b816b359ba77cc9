#include "bench/bench_program.h"

#include <mpi.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <fstream>
#include <new>

#include "bench/benchmark.h"
#include "bench/measure.h"

namespace dtrun::bench {
namespace {

using nlohmann::json;

// The largest share of the CPU that other processes may use. With more, the figures do not describe
// the program.
constexpr double kMostForeign = 0.05;

// The options of all benchmarks.
struct Common {
  std::string json_file;
  bool accepts_others = false;  // of a test, whose figures count for nothing
};

constexpr int kUsage = 2, kNoResult = 73;

// Returns the rows of the first undisturbed run, or null after three disturbed runs. Collective.
json MeasureUndisturbed(Context& job, const Program& program, bool accepts_others) {
  for (int attempt = 1; attempt <= 3; ++attempt) {
    const CpuWatch watch;
    const double before_ns = CacheLineNs(job);
    json rows = program.measure(job);
    const double foreign = ForeignShare(job, watch), after_ns = CacheLineNs(job);
    if (job.rank() == 0)
      std::printf(
          "# other processes used %.1f %% of the CPU; a cache line between the cores of ranks 0 "
          "and 1: %.0f ns before, %.0f ns after\n",
          100 * foreign, before_ns, after_ns);
    for (json& row : rows) row["cache_line_ns"] = {before_ns, after_ns};
    if (foreign <= kMostForeign || accepts_others) return rows;
  }
  if (job.rank() == 0)
    std::printf("INVALID: other processes used more than 5 %% of the CPU in three runs\n");
  return nullptr;
}

bool HasWrong(const json& rows) {
  for (const json& row : rows)
    if (row.value("wrong", uint64_t{0}) != 0) return true;
  return false;
}

int Bench(Context& job, const Program& program, const Common& common) {
  const json rows = MeasureUndisturbed(job, program, common.accepts_others);
  if (rows.is_null()) return 1;
  if (job.rank() == 0 && !common.json_file.empty()) {
    std::ofstream file(common.json_file);
    file << (program.one_row ? rows[0] : rows).dump(1) << '\n';
    if (!file.flush()) {
      std::fprintf(stderr, "%s: cannot write %s\n", program.name.c_str(), common.json_file.c_str());
      return kNoResult;
    }
  }
  return HasWrong(rows) ? 1 : 0;
}

int Run(const Program& program, const Common& common) {
  Context job = Init();
  const std::string obstacle = program.obstacle(job);
  int result = kUsage;
  if (obstacle.empty()) {
    result = Bench(job, program, common);
  } else if (job.rank() == 0) {
    std::fprintf(stderr, "%s: %s\n", program.name.c_str(), obstacle.c_str());
  }
  job.Shutdown();
  return result;
}

}  // namespace

std::string ObstacleBesideMpi(Context& job) {
  int mpi = 0;
  MPI_Initialized(&mpi);
  if (!mpi) return "start it with dtrun -np 2 or more: it measures between ranks";
  if (Oversubscribed(job) && !ReadPeerSettings().yields_when_idle) {
    return "more ranks than CPUs, and MPI would not yield to them; start it with dtrun, or set "
           "OMPI_MCA_mpi_yield_when_idle=1";
  }
  return "";
}

int Main(OptionSet& options, const Program& program, int argc, char** argv) {
  Common common;
  options.Add("--json", &common.json_file, "write the rows to this file");
  options.Add(
      "--beside-others", &common.accepts_others,
      "one run that counts for nothing, also beside other programs: for tests");
  if (const auto status = options.Parse(argc, argv)) return *status == 0 ? 0 : kUsage;
  try {
    return Run(program, common);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", program.name.c_str(), error.what());
    return kUsage;
  }
}

namespace {

constexpr int kTrips = 5000, kSeries = 3;

using Counter = std::atomic<uint64_t>;

// Two ranks increment a counter alternately. Returns the time of the fastest series, because
// interrupts only add time.
double LeastNs(Counter& counter, uint64_t rank) {
  double least = 1e9;
  uint64_t turn = rank;
  for (int series = 0; series < kSeries; ++series) {
    const auto start = std::chrono::steady_clock::now();
    for (int trip = 0; trip < kTrips; ++trip, turn += 2) {
      while (counter.load(std::memory_order_acquire) != turn) continue;
      counter.store(turn + 1, std::memory_order_release);
    }
    const std::chrono::duration<double, std::nano> time = std::chrono::steady_clock::now() - start;
    least = std::min(least, time.count() / (2 * kTrips));
  }
  return least;
}

// Returns 0 on the other ranks of the host. Collective.
double BetweenTheFirstTwo(MPI_Comm host) {
  int rank = 0;
  MPI_Comm_rank(host, &rank);
  void* mine = nullptr;
  MPI_Win window = MPI_WIN_NULL;
  MPI_Win_allocate_shared(rank == 0 ? sizeof(Counter) : 0, 1, MPI_INFO_NULL, host, &mine, &window);
  MPI_Aint bytes = 0;
  int unit = 0;
  void* shared = nullptr;
  MPI_Win_shared_query(window, 0, &bytes, &unit, &shared);
  if (rank == 0) new (shared) Counter(0);
  MPI_Barrier(host);
  const double ns =
      rank < 2 ? LeastNs(*static_cast<Counter*>(shared), static_cast<uint64_t>(rank)) : 0;
  MPI_Win_free(&window);
  return ns;
}

}  // namespace

double CacheLineNs(Context& job) {
  int mpi = 0;
  MPI_Initialized(&mpi);
  if (mpi == 0) return 0;
  MPI_Comm host = MPI_COMM_NULL;
  MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host);
  int ranks = 0;
  MPI_Comm_size(host, &ranks);
  double ns = ranks >= 2 && !Oversubscribed(job) ? BetweenTheFirstTwo(host) : 0;
  MPI_Comm_free(&host);
  job.world().Broadcast(Buffer(&ns, 1), 0);
  return ns;
}

}  // namespace dtrun::bench
