// The time of a collective beside the same call of raw MPI, in the same processes and run, in turn:
// dtrun, MPI, dtrun, MPI. Prints the columns of nccl-tests on rank 0. Run it under dtrun or mpirun.

#include <dtrun/dtrun.h>

#include <CLI/CLI.hpp>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "bench/collective_case.h"
#include "bench/measure.h"
#include "bench/program.h"
#include "bench/table.h"

namespace {

using dtrun::bench::Placement;
using dtrun::bench::Row;

struct Settings {
  std::string op = "all_reduce";
  std::string dtype = "f32";
  std::string memory = "both";
  std::vector<uint64_t> sizes = {4, 4096, 65536, 1048576, 67108864};
  int least_rounds = 15;
};

nlohmann::json MeasureAll(dtrun::Context& job, const Settings& settings) {
  dtrun::Communicator& comm = job.world();
  const dtrun::bench::Op op = *dtrun::bench::OpOf(settings.op);
  const dtrun::DType dtype = *dtrun::bench::DTypeOf(settings.dtype);
  const dtrun::bench::MemorySpeed memory = dtrun::bench::MeasureMemorySpeed(comm);
  const std::string isa = job.option("reduce_isa").value();
  if (job.rank() == 0) {
    PrintHeader(op, comm.size(), comm.backend(), isa, memory, dtrun::bench::ReadPeerSettings());
  }
  std::vector<Row> rows;
  for (const Placement placement : {Placement::kMapped, Placement::kPrivate}) {
    if (settings.memory != "both" && settings.memory != NameOf(placement)) continue;
    for (const uint64_t size : settings.sizes) {
      dtrun::bench::CollectiveCase measured(comm, op, dtype, placement, size);
      Row row{op, dtype, placement, comm.size(), measured.bytes(), measured.count(),
              0,  {},    memory,    isa};
      row.wrong = measured.Wrong();
      row.times = Measure(comm, measured, settings.least_rounds);
      if (job.rank() == 0) PrintRow(row);
      rows.push_back(row);
    }
  }
  return ToJson(rows);
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
  return dtrun::bench::Main(
      app,
      {"all_reduce_perf", [&](dtrun::Context& job) { return MeasureAll(job, settings); },
       dtrun::bench::ObstacleBesideMpi},
      argc, argv);
}
