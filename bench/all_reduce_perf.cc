// Times a collective and the same call of raw MPI alternately, in the same processes and run:
// dtrun, MPI, dtrun, MPI. Rank 0 prints the columns of nccl-tests. Run it under dtrun or mpirun.

#include <dtrun/communicator.h>
#include <dtrun/context.h>
#include <dtrun/types.h>

#include <cstdint>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/bench_program.h"
#include "bench/measure.h"

namespace programs::all_reduce_perf {

using namespace dtrun::bench;
using namespace dtrun;

/// One measured size.
struct Row {
  Op op;
  DType dtype;
  Placement placement;
  int ranks;
  uint64_t bytes, count, wrong;
  Times times;
  MemorySpeed memory;
  std::string isa;  ///< the instruction set of sums

  double algbw_gbps() const { return static_cast<double>(bytes) / times.ours_us / 1e3; }
};

/// For people: prints the columns of nccl-tests, with those of MPI beside them.
void PrintHeader(
    Op op, int ranks, const std::string& backend, const std::string& isa, const MemorySpeed& memory,
    const PeerSettings& peer);
void PrintRow(const Row& row);

/// For programs: uses the names of docs/reference/benchmarks.md. If MPI has no such call, its
/// fields are null.
nlohmann::json ToJson(const std::vector<Row>& rows);

namespace {

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

namespace {

bool Combines(Op op) {
  return op == Op::kAllReduce || op == Op::kReduceScatter || op == Op::kReduce;
}

bool HasRoot(Op op) {
  return op == Op::kBroadcast || op == Op::kReduce || op == Op::kGather || op == Op::kScatter;
}

std::string Fixed(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f", value);
  return text;
}

}  // namespace

void PrintHeader(
    Op op, int ranks, const std::string& backend, const std::string& isa, const MemorySpeed& memory,
    const PeerSettings& peer) {
  std::printf(
      "# %s, %d ranks, backend %s, sums by %s; one core copies %.1f GB/s, all ranks together read "
      "and write %.1f GB/s\n",
      NameOf(op), ranks, backend.c_str(), isa.c_str(), memory.copy_gbps, memory.in_place_gbps);
  std::printf(
      "# beside it %s, mpi_yield_when_idle %d", peer.version.c_str(),
      peer.yields_when_idle ? 1 : 0);
  for (const std::string& variable : peer.variables) std::printf(", %s", variable.c_str());
  std::printf(
      "\n#%11s %12s %5s %6s %5s %8s %10s %10s %7s %8s %8s %7s\n", "size", "count", "type", "redop",
      "root", "memory", "time", "mpi time", "ratio", "algbw", "busbw", "#wrong");
  std::printf(
      "#%11s %12s %5s %6s %5s %8s %10s %10s %7s %8s %8s %7s\n", "(B)", "(elements)", "", "", "", "",
      "(us)", "(us)", "", "(GB/s)", "(GB/s)", "");
}

void PrintRow(const Row& row) {
  const bool peer = row.times.peers_us > 0;
  std::printf(
      "%12llu %12llu %5s %6s %5s %8s %10.2f %10s %7s %8.2f %8.2f %7llu\n",
      static_cast<unsigned long long>(row.bytes), static_cast<unsigned long long>(row.count),
      dtrun::NameOf(row.dtype), Combines(row.op) ? "sum" : "-", HasRoot(row.op) ? "0" : "-",
      NameOf(row.placement), row.times.ours_us, peer ? Fixed(row.times.peers_us).c_str() : "-",
      peer ? Fixed(row.times.peers_us / row.times.ours_us).c_str() : "-", row.algbw_gbps(),
      row.algbw_gbps() * BusFactor(row.op, row.ranks), static_cast<unsigned long long>(row.wrong));
  std::fflush(stdout);
}

nlohmann::json ToJson(const std::vector<Row>& rows) {
  nlohmann::json all = nlohmann::json::array();
  for (const Row& row : rows) {
    nlohmann::json entry = {
        {"op", NameOf(row.op)},
        {"dtype", dtrun::NameOf(row.dtype)},
        {"ranks", row.ranks},
        {"bytes", row.bytes},
        {"memory", NameOf(row.placement)},
        {"isa", row.isa},
        {"time_us", row.times.ours_us},
        {"mpi_time_us", nullptr},
        {"ratio", nullptr},
        {"algbw_gbps", row.algbw_gbps()},
        {"memcpy_gbps", row.memory.copy_gbps},
        {"in_place_gbps", row.memory.in_place_gbps},
        {"wrong", row.wrong},
    };
    if (row.times.peers_us > 0) {
      entry["mpi_time_us"] = row.times.peers_us;
      entry["ratio"] = row.times.peers_us / row.times.ours_us;
    }
    all.push_back(entry);
  }
  return all;
}

using dtrun::bench::Default;
using dtrun::bench::OptionSet;
using dtrun::bench::Range;
using dtrun::bench::Words;

int Main(int argc, char** argv) {
  Settings settings;
  OptionSet options("The time of a collective beside raw MPI's.", "all_reduce_perf");
  options.Add("--op", &settings.op, "the collective", dtrun::bench::OpNames());
  options.Add(
      "--dtype", &settings.dtype, "the type; MPI adds no 16-bit floats",
      dtrun::bench::DTypeNames());
  options.Add(
      "--memory", &settings.memory, "memory that all ranks map, private memory, or both",
      Words{"both", "mapped", "private"});
  options.Add(
      "--bytes", &settings.sizes, "sizes, each the largest buffer of one rank",
      Range<int>{1, INT32_MAX},  // MPI counts in int
      Default::kHidden);
  options.Add(
      "--rounds", &settings.least_rounds, "timed rounds of each side, at least",
      Range<int>{1, 10000});
  return dtrun::bench::Main(
      options,
      {"all_reduce_perf", [&](dtrun::Context& job) { return MeasureAll(job, settings); },
       dtrun::bench::ObstacleBesideMpi},
      argc, argv);
}

}  // namespace programs::all_reduce_perf
