#ifndef DTRUN_BENCH_BENCH_PROGRAM_H_
#define DTRUN_BENCH_BENCH_PROGRAM_H_

#include <dtrun/context.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "bench/benchmark.h"

namespace dtrun::bench {

/// A benchmark. All ranks measure, and rank 0 prints.
struct Program {
  std::string name;
  /// Prints one row at a time on rank 0, and returns the rows for --json. If "wrong" is not 0 in a
  /// row, the program fails. Collective.
  std::function<nlohmann::json(Context& job)> measure;
  /// The reason why this job cannot be measured, or "".
  std::function<std::string(Context& job)> obstacle;
  /// True: there is one row, and --json writes it without a list.
  bool one_row = false;
};

/// Parses the command line, with --json FILE as an additional option, joins the job and measures.
/// If other processes used more than 5 % of the CPU, the run is repeated, up to three runs, unless
/// the option --beside-others is given. Returns the exit code: 0; 1 for INVALID or wrong results; 2
/// for usage and other errors; 73 if the file cannot be written.
int Main(OptionSet& options, const Program& program, int argc, char** argv);

/// The obstacle of a benchmark that compares with MPI: the program was not started as MPI ranks, or
/// idle MPI ranks would take the CPU that other ranks need.
std::string ObstacleBesideMpi(Context& job);

/// The nanoseconds that a cache line takes from the core of rank 0 to the core of rank 1. If the
/// cores share a last-level cache, the time is about 40 ns. If they do not, the time is about 200
/// ns; each core then has a separate path to memory, and both together read and write twice as
/// much. Virtual machines do not report the case and may move from one to the other. Returns 0 if
/// ranks 0 and 1 are not on one host, or if they may share a core. Collective.
double CacheLineNs(Context& job);

}  // namespace dtrun::bench

#endif  // DTRUN_BENCH_BENCH_PROGRAM_H_
