#ifndef DTRUN_RUNTIME_JOIN_BY_HAND_H_
#define DTRUN_RUNTIME_JOIN_BY_HAND_H_

#include <optional>
#include <string>

#include "base/launch_env.h"
#include "runtime/join_plan.h"
#include "runtime/machine.h"

namespace dtrun::runtime {

/// The job that the variables of other frameworks describe, set by torchrun or by hand: WORLD_SIZE
/// with RANK, MASTER_ADDR and MASTER_PORT (and LOCAL_RANK, LOCAL_WORLD_SIZE), or TF_CONFIG. None
/// where they describe no job; kAlone where they say that there is one rank. Throws as PlanJoin
/// does.
std::optional<JoinPlan> PlanByHand(const base::GetEnv& get, const Machine& machine);

/// The value of a variable that is set and not empty.
std::optional<std::string> ValueOf(const base::GetEnv& get, const std::string& name);

/// The number that a variable holds, if it is set. Throws Error kInvalidArgument for another one.
std::optional<int> NumberOf(
    const base::GetEnv& get, const std::string& name, int least, int most = 1'000'000);

/// What ends every refusal of a job: how to start it, and how to be alone.
///   "dtrun -np 2 ./train"  ->  "; type: dtrun -np 2 ./train (or set DTRUN_ALONE=1 ...)"
std::string InsteadType(const std::string& line);

}  // namespace dtrun::runtime

#endif
