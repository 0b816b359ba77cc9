#include "runtime/strategies/tf_job.h"

#include "base/text.h"
#include "dtrun/error.h"
#include "runtime/tf_cluster.h"

namespace dtrun::runtime {

void CheckTfJob(const base::GetEnv& get, int ranks) {
  const std::string text = get("TF_CONFIG").value_or("");
  if (text.empty()) return;
  const size_t tasks = ReadTfCluster(text).addresses.size();
  if (tasks == 0 || tasks == static_cast<size_t>(ranks)) return;
  throw Error(
      ErrorCode::kInvalidArgument,
      base::Text(
          "environment variable TF_CONFIG: the cluster has ", tasks,
          tasks == 1 ? " task" : " tasks", "; expected ", ranks, ", as many as the job has ranks"));
}

}  // namespace dtrun::runtime
