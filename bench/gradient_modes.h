#ifndef DTRUN_BENCH_GRADIENT_MODES_H_
#define DTRUN_BENCH_GRADIENT_MODES_H_

#include <dtrun/dtrun.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/model_shapes.h"

namespace dtrun::bench {

/// A model whose gradients are reduced, and how long to measure it.
struct GradientCase {
  std::string name;
  std::vector<Shape> shapes;
  int least_rounds = 15;

  uint64_t count() const;
};

/// The reduction alone, mode "mapped" or "scattered", beside Horovod's way over raw MPI and beside
/// a memcpy by one core while the others are idle. Collective.
nlohmann::json MeasureReduction(
    Communicator& comm, const GradientCase& measured, const std::string& mode);

/// Reduction and a step of SGD with momentum, in the modes "local_step", "sharded_step" and
/// "sharded_step_one_copy", which take turns; a row for each, in this order. The last is left out
/// where the ranks do not share a host. Collective.
std::vector<nlohmann::json> MeasureSteps(Communicator& comm, const GradientCase& measured);

}  // namespace dtrun::bench

#endif
