#ifndef DTRUN_LAUNCHER_PLAN_RANK_ENVIRONMENT_H_
#define DTRUN_LAUNCHER_PLAN_RANK_ENVIRONMENT_H_

#include <functional>
#include <string>
#include <vector>

#include "base/launch_env.h"

namespace dtrun::launcher {

/// Where rank 0 may open a port, by the names that PyTorch and TensorFlow know.
inline constexpr char kMasterAddress[] = "MASTER_ADDR";
inline constexpr char kMasterPort[] = "MASTER_PORT";

/// The variables by which programs of other frameworks find their rank: RANK, WORLD_SIZE,
/// LOCAL_RANK, LOCAL_WORLD_SIZE and TF_CONFIG, a worker on each rank whose ports follow
/// `master_port`. Without TF_CONFIG where a job is too large for a variable.
base::Environment RankVariables(
    const std::vector<base::HostSlots>& hosts, int rank, const std::string& master_address,
    int master_port);

/// All names that RankVariables and dtrun set for a rank's program: an outer dtrun's are not meant
/// for an inner job.
const std::vector<std::string>& RankVariableNames();

/// A first port for a job on whose first host `ranks_there` ranks run: that one and as many after
/// it as there are ranks. `random` decides; those are passed over that `is_free` refuses. It is
/// below the range from which systems take ports for outgoing connections, so none of these takes
/// it.
int ChoosePort(unsigned random, int ranks_there, const std::function<bool(int)>& is_free);

/// Whether nothing on this machine listens on the port.
bool IsFreePort(int port);

}  // namespace dtrun::launcher

#endif
