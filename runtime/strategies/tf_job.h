#ifndef DTRUN_RUNTIME_STRATEGIES_TF_JOB_H_
#define DTRUN_RUNTIME_STRATEGIES_TF_JOB_H_

#include "base/launch_env.h"

namespace dtrun::runtime {

/// Nothing where the environment's TF_CONFIG is missing, describes no cluster, or one of `ranks`
/// chiefs and workers. Else throws Error kInvalidArgument that says what is wrong with it.
void CheckTfJob(const base::GetEnv& get, int ranks);

}  // namespace dtrun::runtime

#endif
