#ifndef DTRUN_LAUNCHER_DRY_RUN_H_
#define DTRUN_LAUNCHER_DRY_RUN_H_

#include <string>
#include <vector>

#include "launcher/bind.h"
#include "launcher/cpus.h"
#include "launcher/mpirun.h"

namespace dtrun::launcher {

/// Where a rank of a planned job goes.
struct RankPlace {
  int rank;
  int local_rank;
  std::string host;
  std::optional<CpuPlan> cpus;  ///< nothing for another host, which alone knows its CPUs
};

/// The places of all ranks; `cpus` and `quota` are this machine's. Throws UsageError for a binding
/// that this machine cannot give.
std::vector<RankPlace> PlacesOf(
    const MpirunCall& call, Bind bind, const std::string& own_name, const std::vector<Cpu>& cpus,
    std::optional<double> quota);

/// The command as a shell reads it, then a line for each rank.
std::string PlanText(const MpirunCall& call, const std::vector<RankPlace>& places);

/// The same as JSON: "command" (the words), "variables" (names that are sent along) and "ranks".
std::string PlanJson(const MpirunCall& call, const std::vector<RankPlace>& places);

}  // namespace dtrun::launcher

#endif
