#ifndef DTRUN_LAUNCHER_CHECK_BUILD_H_
#define DTRUN_LAUNCHER_CHECK_BUILD_H_

#include <string>

#include "launcher/launcher_kind.h"

namespace dtrun::launcher {

/// What --check-build prints: dtrun's parts and the MPI that it would use, each with its file or
/// with what is wrong. `path` is what $PATH says.
struct BuildReport {
  std::string text;
  bool complete;  ///< jobs can be started by this launcher
};

BuildReport CheckBuild(const std::string& path, Launcher launcher);

}  // namespace dtrun::launcher

#endif
