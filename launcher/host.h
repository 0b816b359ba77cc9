#ifndef DTRUN_LAUNCHER_HOST_H_
#define DTRUN_LAUNCHER_HOST_H_

#include <string>

namespace dtrun::launcher {

/// A host that may take ranks, as its source describes it.
struct Host {
  std::string name;
  int slots = 0;            ///< ranks it is meant for; 0: its source does not say
  int max_slots = 0;        ///< ranks it must not exceed, oversubscribed or not; 0: no limit
  std::string origin = {};  ///< who says so: "-H", "hosts.txt:3", "SLURM_JOB_NODELIST"

  bool operator==(const Host&) const = default;
};

}  // namespace dtrun::launcher

#endif
