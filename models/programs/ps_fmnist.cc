// Trains a network by name on Fashion-MNIST, or another IDX data set, with parameter servers:
//   dtrun -np 3 --ps 1 ps_fmnist --batch-size 64 --epochs 2
// models/programs/parameter_program.cc has the work of each rank.

#include <dtrun/dtrun.h>

#include "models/programs/parameter_program.h"
#include "models/programs/rank_main.h"

namespace dtrun::models {
namespace {

constexpr char kProgram[] = "ps_fmnist";
constexpr char kStrategy[] = "parameter_server";

int Main(int argc, char** argv) {
  ParameterOptions options = ReadParameterOptions(argc, argv, kStrategy);
  if (!options.has_servers() && options.parsed.error.empty())
    options.parsed.error = "--strategy " + options.parsed.options.strategy +
                           ": expected parameter_server; run cnn_fmnist for other strategies";
  return RunAsRank(
      kProgram, [&](Context& job) { return TrainWithServers(job, kProgram, options); });
}

}  // namespace
}  // namespace dtrun::models

int main(int argc, char** argv) { return dtrun::models::Main(argc, argv); }
