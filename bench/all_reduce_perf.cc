// The time of a collective beside the same call of raw MPI, in the same processes and run, in turn:
// dtrun, MPI, dtrun, MPI. Prints the columns of nccl-tests on rank 0. Run it under dtrun or mpirun.
// A run in which other processes used more than 5 % of the CPU is repeated, three runs at most.

#include <dtrun/dtrun.h>
#include <mpi.h>

#include <CLI/CLI.hpp>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "bench/collective_case.h"
#include "bench/cpu_watch.h"
#include "bench/measure.h"
#include "bench/table.h"

namespace {

using dtrun::bench::Placement;
using dtrun::bench::Row;

struct Settings {
  std::string op = "all_reduce";
  std::string dtype = "f32";
  std::string memory = "both";
  std::vector<uint64_t> sizes = {4, 4096, 65536, 1048576, 67108864};
  std::string json_file;
  int least_rounds = 15;
};

// Of the CPU, to other processes: more of that, and the figures are not the program's.
constexpr double kMostForeign = 0.05;

std::vector<Row> RunAll(dtrun::Context& job, const Settings& settings) {
  dtrun::Communicator& comm = job.world();
  const dtrun::bench::Op op = *dtrun::bench::OpOf(settings.op);
  const dtrun::DType dtype = *dtrun::bench::DTypeOf(settings.dtype);
  const dtrun::bench::MemorySpeed memory = dtrun::bench::MeasureMemorySpeed(comm);
  if (job.rank() == 0) {
    PrintHeader(op, comm.size(), comm.backend(), memory, dtrun::bench::ReadPeerSettings());
  }
  std::vector<Row> rows;
  for (const Placement placement : {Placement::kMapped, Placement::kPrivate}) {
    if (settings.memory != "both" && settings.memory != NameOf(placement)) continue;
    for (const uint64_t size : settings.sizes) {
      dtrun::bench::CollectiveCase measured(comm, op, dtype, placement, size);
      Row row{op, dtype, placement, comm.size(), measured.bytes(), measured.count(), 0, {}, memory};
      row.wrong = measured.Wrong();
      row.times = Measure(comm, measured, settings.least_rounds);
      if (job.rank() == 0) PrintRow(row);
      rows.push_back(row);
    }
  }
  return rows;
}

int Bench(dtrun::Context& job, const Settings& settings) {
  std::vector<Row> rows;
  double foreign = 1;
  for (int attempt = 1; attempt <= 3 && foreign > kMostForeign; ++attempt) {
    dtrun::bench::CpuWatch watch;
    rows = RunAll(job, settings);
    foreign = ForeignShare(job, watch);
    if (job.rank() == 0) std::printf("# other processes used %.1f %% of the CPU\n", 100 * foreign);
  }
  if (foreign > kMostForeign) {
    if (job.rank() == 0) {
      std::printf("INVALID: other processes used more than 5 %% of the CPU in three runs\n");
    }
    return 1;
  }
  uint64_t wrong = 0;
  for (const Row& row : rows) wrong += row.wrong;
  if (job.rank() == 0 && !settings.json_file.empty()) {
    std::ofstream file(settings.json_file);
    file << ToJson(rows).dump(1) << '\n';
    if (!file.flush()) {
      std::fprintf(stderr, "all_reduce_perf: cannot write %s\n", settings.json_file.c_str());
      return 73;
    }
  }
  return wrong == 0 ? 0 : 1;
}

// Why this job cannot be measured beside MPI; "" when it can.
std::string Obstacle(dtrun::Context& job) {
  int mpi = 0;
  MPI_Initialized(&mpi);
  if (!mpi) return "start it with dtrun -np 2 or more: it measures between ranks";
  if (dtrun::bench::Oversubscribed(job) && !dtrun::bench::ReadPeerSettings().yields_when_idle) {
    return "more ranks than CPUs, and MPI would not yield to them; start it with dtrun, or set "
           "OMPI_MCA_mpi_yield_when_idle=1";
  }
  return "";
}

int Run(const Settings& settings) {
  dtrun::Context job = dtrun::Init();
  const std::string obstacle = Obstacle(job);
  int result = 2;
  if (obstacle.empty()) {
    result = Bench(job, settings);
  } else if (job.rank() == 0) {
    std::fprintf(stderr, "all_reduce_perf: %s\n", obstacle.c_str());
  }
  job.Shutdown();
  return result;
}

}  // namespace

int main(int argc, char** argv) {
  Settings settings;
  CLI::App app("The time of a collective beside raw MPI's.", "all_reduce_perf");
  app.add_option("--op", settings.op, "the collective")
      ->check(CLI::IsMember(dtrun::bench::OpNames()))
      ->capture_default_str();
  app.add_option("--dtype", settings.dtype, "the type; MPI adds no 16-bit floats")
      ->check(CLI::IsMember(dtrun::bench::DTypeNames()))
      ->capture_default_str();
  app.add_option("--memory", settings.memory, "memory that all ranks map, private memory, or both")
      ->check(CLI::IsMember({"both", "mapped", "private"}))
      ->capture_default_str();
  app.add_option("--bytes", settings.sizes, "sizes, each the largest buffer of one rank")
      ->check(CLI::Range(1, INT32_MAX))  // MPI counts in int
      ->delimiter(',');
  app.add_option("--rounds", settings.least_rounds, "timed rounds of each side, at least")
      ->check(CLI::Range(1, 10000))
      ->capture_default_str();
  app.add_option("--json", settings.json_file, "write the rows to this file");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  try {
    return Run(settings);
  } catch (const dtrun::Error& error) {
    std::fprintf(stderr, "all_reduce_perf: %s\n", error.what());
    return 2;
  }
}
