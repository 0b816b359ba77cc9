#ifndef DTRUN_LAUNCHER_COMMAND_LINE_H_
#define DTRUN_LAUNCHER_COMMAND_LINE_H_

#include <string>
#include <vector>

#include "launcher/host_sources.h"
#include "launcher/settings.h"

namespace dtrun::launcher {

/// The command line, taken apart.
struct CommandLine {
  Settings settings;
  std::string config;                ///< the file of --config; "": none
  std::vector<std::string> program;  ///< with its arguments, untouched
};

/// Takes `arguments`, which do not contain dtrun's own name, apart. The first word that is no
/// option (or the first one after "--") is the program, and all that follows belongs to it. Throws
/// UsageError.
CommandLine ParseCommandLine(const std::vector<std::string>& arguments);

/// All that was said, by the command line, its --config file and the environment.
struct Request {
  Settings settings;
  Options options;
};

/// Reads all three. Throws UsageError, also where a program is due and missing.
Request ReadRequest(const std::vector<std::string>& arguments, const Surroundings& surroundings);

/// What --help prints.
std::string HelpText();

}  // namespace dtrun::launcher

#endif
