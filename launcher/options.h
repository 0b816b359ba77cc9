#ifndef DTRUN_LAUNCHER_OPTIONS_H_
#define DTRUN_LAUNCHER_OPTIONS_H_

#include <string>
#include <vector>

#include "base/launch_env.h"
#include "launcher/output_options.h"

namespace dtrun::launcher {

enum class Action { kRun, kDryRun, kHelp, kVersion };

/// A command line that was understood.
struct Options {
  Action action = Action::kRun;
  int ranks = 0;
  std::vector<base::HostSlots> hosts;  ///< with at least `ranks` slots
  std::vector<std::string> exported;   ///< names of environment variables (-x)
  std::vector<std::string> mpi_args;   ///< words for mpirun
  std::string flight_record;           ///< file for what the ranks did last; "": none
  OutputOptions output;
  bool verbose = false;
  std::vector<std::string> program;  ///< with its arguments, untouched; empty for help and version
};

/// Reads `arguments`, which do not contain dtrun's own name. The first word that is no option (or
/// the first one after "--") is the program, and all that follows belongs to it.
/// Throws UsageError.
Options ParseCommandLine(const std::vector<std::string>& arguments);

/// What --help prints.
std::string HelpText();

}  // namespace dtrun::launcher

#endif
