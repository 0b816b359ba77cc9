// The cost of joining a job, compared with MPI: the time of Init and the resident memory of a rank
// after Init. The comparison is a bare MPI_Init in as many processes under mpirun. Both jobs are
// started alternately, several times. Prints medians over jobs; each job counts its slowest and its
// largest rank.
//
// Run the program alone, with dtrun and mpirun in the PATH. It starts the ranks, which are this
// program again.

#include <dtrun/communicator.h>
#include <dtrun/context.h>
#include <dtrun/types.h>
#include <mpi.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "bench/benchmark.h"

namespace {

using nlohmann::json;
using Clock = std::chrono::steady_clock;

// Resident memory of this process, in KiB. `shared` is memory that ranks share to communicate;
// `own` is the rest.
struct Resident {
  double own = 0, shared = 0;
};

Resident ReadResident() {
  Resident found;
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    double kib = 0;
    if ((word == "RssAnon:" || word == "RssFile:") && status >> kib) found.own += kib;
    if (word == "RssShmem:" && status >> kib) found.shared += kib;
  }
  return found;
}

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

constexpr const char* kFigures = "init_perf figures %lf %lf %lf\n";

void Tell(double seconds, const Resident& resident) {
  std::printf(kFigures, seconds, resident.own, resident.shared);
}

// --- ranks --------------------------------------------------------------------------------------

void RunMpiRank() {
  const Clock::time_point start = Clock::now();
  MPI_Init(nullptr, nullptr);
  const double seconds = SecondsSince(start);
  const Resident resident = ReadResident();
  double figures[] = {seconds, resident.own, resident.shared}, largest[3] = {};
  MPI_Reduce(figures, largest, 3, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  if (rank == 0) Tell(largest[0], {largest[1], largest[2]});
  MPI_Finalize();
}

void RunRank() {
  const Clock::time_point start = Clock::now();
  dtrun::Context job = dtrun::Init();
  const double seconds = SecondsSince(start);
  const Resident resident = ReadResident();
  std::array<double, 3> largest = {seconds, resident.own, resident.shared};
  job.world().AllReduce(dtrun::Buffer(largest.data(), largest.size()), dtrun::ReduceOp::kMax);
  if (job.rank() == 0) Tell(largest[0], {largest[1], largest[2]});
  job.Shutdown();
}

// --- jobs ---------------------------------------------------------------------------------------

struct Figures {
  double init_s = 0, whole_s = 0;
  Resident resident;
};

// Returns nullopt if the job failed.
std::optional<Figures> RunJob(const std::string& command) {
  const Clock::time_point start = Clock::now();
  FILE* out = ::popen(command.c_str(), "r");
  if (out == nullptr) return std::nullopt;
  Figures figures;
  bool told = false;
  char line[512];
  while (std::fgets(line, sizeof line, out) != nullptr) {
    told |=
        std::sscanf(
            line, kFigures, &figures.init_s, &figures.resident.own, &figures.resident.shared) == 3;
  }
  const bool ended_well = ::pclose(out) == 0;
  figures.whole_s = SecondsSince(start);
  if (!told || !ended_well) return std::nullopt;
  return figures;
}

double MedianOf(const std::vector<Figures>& all, double (*part)(const Figures&)) {
  std::vector<double> values;
  for (const Figures& figures : all) values.push_back(part(figures));
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

json Row(const std::string& name, int ranks, const std::vector<Figures>& all) {
  return {
      {"case", name},
      {"ranks", ranks},
      {"init_s", MedianOf(all, [](const Figures& f) { return f.init_s; })},
      {"job_s", MedianOf(all, [](const Figures& f) { return f.whole_s; })},
      {"own_mib", MedianOf(all, [](const Figures& f) { return f.resident.own / 1024; })},
      {"shared_mib", MedianOf(all, [](const Figures& f) { return f.resident.shared / 1024; })}};
}

int Measure(int ranks, int rounds, const std::string& json_file) {
  const std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
  const std::string np = " -np " + std::to_string(ranks) + ' ';
  struct Side {
    std::string name, command;
    std::vector<Figures> figures = {};
  };
  std::vector<Side> sides = {
      {"MPI_Init", "mpirun --allow-run-as-root --oversubscribe" + np + self + " --as mpi"},
      {"dtrun", "dtrun --oversubscribe --tag none" + np + self + " --as dtrun"},
      {"dtrun --launcher local",
       "dtrun --launcher local --oversubscribe --tag none" + np + self + " --as dtrun"}};
  for (int i = 0; i < rounds; ++i) {
    for (Side& side : sides) {
      const std::optional<Figures> figures = RunJob(side.command);
      if (!figures) {
        std::fprintf(stderr, "init_perf: failed: %s\n", side.command.c_str());
        return 1;
      }
      side.figures.push_back(*figures);
    }
  }
  json rows = json::array();
  for (const Side& side : sides) {
    rows.push_back(Row(side.name, ranks, side.figures));
    const json& row = rows.back();
    const double init = row["init_s"], own = row["own_mib"];
    std::printf(
        "%-22s %3d ranks: init %7.3f s (%.2f of MPI_Init); a rank has %6.1f MiB of its own (%+.1f) "
        "and %.1f shared; the job takes %.2f s\n",
        side.name.c_str(), ranks, init, init / rows[0]["init_s"].get<double>(), own,
        own - rows[0]["own_mib"].get<double>(), row["shared_mib"].get<double>(),
        row["job_s"].get<double>());
  }
  if (!json_file.empty()) std::ofstream(json_file) << rows.dump(2) << '\n';
  return 0;
}

}  // namespace

using dtrun::bench::OptionSet;
using dtrun::bench::Range;
using dtrun::bench::Words;

int main(int argc, char** argv) {
  int ranks = 64, rounds = 5;
  std::string as, json_file;
  OptionSet options("What joining a job costs, beside MPI_Init.", "init_perf");
  options.Add("--ranks", &ranks, "of each job", Range<int>{1, 1024});
  options.Add("--rounds", &rounds, "jobs of each kind", Range<int>{1, 1000});
  options.Add("--json", &json_file, "write the figures to this file");
  options.Add("--as", &as, "used by this program: be a rank", Words{"mpi", "dtrun"});
  if (const auto status = options.Parse(argc, argv)) return *status;
  if (as == "mpi") {
    RunMpiRank();
  } else if (as == "dtrun") {
    RunRank();
  } else {
    return Measure(ranks, rounds, json_file);
  }
  return 0;
}
