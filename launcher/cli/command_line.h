#ifndef DTRUN_LAUNCHER_CLI_COMMAND_LINE_H_
#define DTRUN_LAUNCHER_CLI_COMMAND_LINE_H_

#include <string>
#include <vector>

#include "launcher/cli/option_settings.h"
#include "launcher/plan/job_options.h"

namespace dtrun::launcher {

/// A parsed command line.
struct CommandLine {
  Settings settings;
  std::string config;                ///< path from --config; "": none
  std::vector<std::string> program;  ///< with its arguments, unchanged
};

/// Parses `arguments`, which do not contain dtrun's own name. The first word that is not an option,
/// or the first word after "--", is the program. All later words are its arguments. Throws
/// UsageError. That of an unknown option ends with `help`, which says where the options are listed.
CommandLine ParseCommandLine(const std::vector<std::string>& arguments, const std::string& help);

/// The user's settings from the command line, the --config file and the environment.
struct Request {
  Settings settings;
  Options options;
};

/// Reads all three sources. An action such as --help uses only the command line. Throws UsageError,
/// also if the action needs a program and none is given.
Request ReadRequest(const std::vector<std::string>& arguments, const Surroundings& surroundings);

/// The output of --help, or of --help-all if `all`, in lines of at most 80 columns.
std::string HelpText(bool all);

/// A bash script that completes dtrun's options, their values and the program's name. After `dtrun
/// doctor`, the options are `doctor_options`.
std::string BashCompletion(const std::vector<std::string>& doctor_options);

}  // namespace dtrun::launcher

#endif  // DTRUN_LAUNCHER_CLI_COMMAND_LINE_H_
