#ifndef DTRUN_LAUNCHER_CLI_COMMAND_LINE_H_
#define DTRUN_LAUNCHER_CLI_COMMAND_LINE_H_

#include <string>
#include <vector>

#include "launcher/cli/option_settings.h"
#include "launcher/plan/job_options.h"

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

/// What --help prints, or --help-all, in lines of at most 80 columns.
std::string HelpText(bool all);

/// A script that teaches bash to complete dtrun's options, their values and the program's name.
/// After `dtrun doctor` only `doctor_options` are options.
std::string BashCompletion(const std::vector<std::string>& doctor_options);

}  // namespace dtrun::launcher

#endif  // DTRUN_LAUNCHER_CLI_COMMAND_LINE_H_
