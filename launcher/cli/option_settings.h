#ifndef DTRUN_LAUNCHER_CLI_OPTION_SETTINGS_H_
#define DTRUN_LAUNCHER_CLI_OPTION_SETTINGS_H_

#include <string>
#include <vector>

#include "base/launch_env.h"
#include "launcher/cli/option_table.h"

namespace dtrun::launcher {

/// Who says the value of an option, the strongest first.
enum class Source { kCommandLine, kConfig, kEnvironment };

struct Value {
  std::string text;
  std::string where;  ///< for messages: "-np", "job.yaml:3:5: np", "DTRUN_BACKEND"
};

/// One option as one source says it.
struct Setting {
  const OptionRow* option;
  Source source;
  std::vector<Value> values;  ///< several for a repeated option
};

using Settings = std::vector<Setting>;

/// The knobs of the library that the environment sets. Throws UsageError for a value that the
/// library would refuse.
Settings ReadEnvironment(const base::GetEnv& get);

/// For each option the setting of its strongest source, in the table's order. What names hosts
/// (-H, --hostfile) counts as one option. Throws UsageError where one source says both.
Settings MergeSettings(const Settings& settings);

/// The defaults with `settings` applied. Throws UsageError that names the place and the value.
Options UnderstandSettings(const Settings& settings);

/// All options as a YAML file that --config reads, each with where it comes from. `options`
/// are what `settings` mean, `hosts` those that were found.
std::string PrintedConfig(
    const Settings& settings, const Options& options, const std::vector<Host>& hosts);

/// The settings of a configuration file (YAML): one map from options, named as on the command line,
/// to their values.
///   np: 4
///   hosts: [node1:2, node2:2]
///   bucket-mb: 8
/// `name` is the file's, for messages. Throws UsageError "FILE:LINE:COLUMN: ..." for what is no
/// such file: an unknown key, one that stands there twice, a list or map where a value is due.
Settings ParseConfig(const std::string& name, const std::string& text);

/// Which of `known` the user may have meant by `word`; "" when none is near.
std::string ClosestTo(const std::string& word, const std::vector<std::string>& known);

}  // namespace dtrun::launcher

#endif  // DTRUN_LAUNCHER_CLI_OPTION_SETTINGS_H_
