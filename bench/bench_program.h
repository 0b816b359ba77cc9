#ifndef DTRUN_BENCH_BENCH_PROGRAM_H_
#define DTRUN_BENCH_BENCH_PROGRAM_H_

#include <dtrun/dtrun.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "bench/bench_options.h"

namespace dtrun::bench {

/// A benchmark: what is measured on all ranks, and told by rank 0.
struct Program {
  std::string name;
  /// Prints a row at a time on rank 0; the rows are for --json. A row whose "wrong" is not 0 fails
  /// the program. Collective.
  std::function<nlohmann::json(Context& job)> measure;
  /// Why this job cannot be measured; "" when it can.
  std::function<std::string(Context& job)> obstacle;
  /// There is one row, which --json writes without a list around it.
  bool one_row = false;
};

/// Parses the command line, to which it adds --json FILE, joins the job and measures; a run in
/// which other processes used more than 5 % of the CPU is repeated, three runs at most. The exit
/// code: 0; 1 INVALID or wrong; 2 usage; 73 the file cannot be written.
int Main(OptionSet& options, const Program& program, int argc, char** argv);

/// The usual obstacles of a benchmark beside MPI: it has not been started as ranks of MPI, or MPI
/// would burn the CPU that its peers need.
std::string ObstacleBesideMpi(Context& job);

/// How long a cache line takes from the core of rank 0 to that of rank 1, in nanoseconds: some 40
/// where they share a last-level cache, some 200 where they do not and have a path to memory each,
/// so that both together read and write twice as much. Virtual machines do not tell, and move
/// between the two. 0 where these ranks share no host, or a core. Collective.
double CacheLineNs(Context& job);

}  // namespace dtrun::bench

#endif  // DTRUN_BENCH_BENCH_PROGRAM_H_
