#ifndef DTRUN_LAUNCHER_CLI_OPTION_SETTINGS_H_
#define DTRUN_LAUNCHER_CLI_OPTION_SETTINGS_H_

#include <string>
#include <vector>

#include "base/launch_env.h"
#include "launcher/plan/job_options.h"

namespace dtrun::launcher {

enum class OptionKind {
  kAction,  ///< selects an action; takes no value; only on the command line
  kFlag,
  kValue,
  kCommaList,  ///< one value with commas; may be a list in a configuration file
  kRepeated,   ///< may be given many times; may be a list in a configuration file
};

/// One option of dtrun. The command line, the help, the configuration file, --print-config and the
/// completion all use this row.
struct OptionRow {
  const char* spellings;  ///< as the user types them: "-np,--num-proc", "-H,--hosts"
  OptionKind kind;
  const char* value;  ///< name of the value in the help; "a|b" for a choice; "": no value
  const char* group;
  const char* help;
  const char* initial;  ///< default value; "": none
  /// Applies one value to `options`. Throws UsageError that says which value was expected. Null for
  /// --config, which is read before all other options.
  void (*apply)(const OptionRow& row, const std::string& text, Options& options);
  const char* knob = "";     ///< library option that this option sets (base/options.h); "": none
  const char* aliases = "";  ///< spellings of other launchers, not shown in the help
};

/// All options, in the order of the help.
const std::vector<OptionRow>& OptionTable();

/// All spellings and aliases as CLI11 accepts them: "-np" becomes "--np".
std::vector<std::string> Spellings(const OptionRow& row);

/// The name of the option in messages: "-np", "--hosts".
std::string TypedName(const OptionRow& row);

/// The key of the option in a configuration file: "np", "hosts".
std::string KeyOf(const OptionRow& row);

bool TakesValue(const OptionRow& row);

/// Whether --help shows the option. --help-all shows all options.
bool IsCommon(const OptionRow& row);

/// Advice for an option of Horovod or torchrun that dtrun does not have; "": none.
std::string ReplacementFor(const std::string& spelling);

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
