#ifndef DTRUN_LAUNCHER_PLAN_RANK_ENVIRONMENT_H_
#define DTRUN_LAUNCHER_PLAN_RANK_ENVIRONMENT_H_

#include <functional>
#include <string>
#include <vector>

#include "base/launch_env.h"
#include "base/listen_filter.h"
#include "launcher/hosts/cluster_environment.h"

namespace dtrun::launcher {

/// The variables for the address and the port at which rank 0 may listen, as PyTorch names them.
inline constexpr char kMasterAddress[] = "MASTER_ADDR";
inline constexpr char kMasterPort[] = "MASTER_PORT";

/// The variables by which programs of other frameworks find their rank: RANK, WORLD_SIZE,
/// LOCAL_RANK, LOCAL_WORLD_SIZE and TF_CONFIG. In TF_CONFIG, each rank has its role, and the ports
/// follow `master_port`. If TF_CONFIG is too long for a variable, it is left out.
base::Environment RankVariables(
    const std::vector<base::HostSlots>& hosts, int rank, const std::string& master_address,
    int master_port, const TfRoles& roles = {});

/// The names of all variables that RankVariables and dtrun set for a rank's program. An inner job
/// must not inherit them from an outer dtrun.
const std::vector<std::string>& RankVariableNames();

/// The first port for a job with `ranks_there` ranks on its first host. The job uses this port and
/// one more for each of these ranks; at most 1000 are checked. `random` selects the ports. If
/// `is_free` refuses one of them, the next choice is tried, up to 20 choices. All ports are in
/// `range`, or, if it is 0 to 0, below those that systems take for outgoing connections.
int ChoosePort(
    unsigned random, int ranks_there, const std::function<bool(int)>& is_free,
    base::PortRange range = {});

/// Whether no process on this machine listens on the port.
bool IsFreePort(int port);

}  // namespace dtrun::launcher

#endif
