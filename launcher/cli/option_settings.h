#ifndef DTRUN_LAUNCHER_CLI_OPTION_SETTINGS_H_
#define DTRUN_LAUNCHER_CLI_OPTION_SETTINGS_H_

#include <string>
#include <vector>

#include "base/launch_env.h"
#include "launcher/cli/option_table.h"

namespace dtrun::launcher {

/// The source of an option's value, the strongest first.
enum class Source { kCommandLine, kConfig, kEnvironment };

struct Value {
  std::string text;
  std::string where;  ///< place, for messages: "-np", "job.yaml:3:5: np", "DTRUN_BACKEND"
};

/// One option as set by one source.
struct Setting {
  const OptionRow* option;
  Source source;
  std::vector<Value> values;  ///< several only for a repeated option
};

using Settings = std::vector<Setting>;

/// The knobs of the library that environment variables set. Throws UsageError for a value that the
/// library would refuse.
Settings ReadEnvironment(const base::GetEnv& get);

/// The strongest setting of each option, in the order of the table. -H and --hostfile count as one
/// option. Throws UsageError if one source sets both.
Settings MergeSettings(const Settings& settings);

/// The default options with `settings` applied. Throws UsageError that names the place and the
/// value.
Options UnderstandSettings(const Settings& settings);

/// All options as a YAML file for --config, each with its source in a comment. `options` are the
/// result of `settings`. `hosts` are the hosts found for them.
std::string PrintedConfig(
    const Settings& settings, const Options& options, const std::vector<Host>& hosts);

/// The settings of a configuration file: one YAML map from option names, without dashes, to values.
///   np: 4
///   hosts: [node1:2, node2:2]
///   bucket-mb: 8
/// `name` is the file's name, for messages. Throws UsageError "FILE:LINE:COLUMN: ..." for any other
/// text: an unknown key, a repeated key, or a list or map in place of a value.
Settings ParseConfig(const std::string& name, const std::string& text);

/// The word in `known` that the user may have meant by `word`; "": none is close enough.
std::string ClosestTo(const std::string& word, const std::vector<std::string>& known);

}  // namespace dtrun::launcher

#endif  // DTRUN_LAUNCHER_CLI_OPTION_SETTINGS_H_
