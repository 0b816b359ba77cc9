#ifndef DTRUN_LAUNCHER_CLI_OPTION_TABLE_H_
#define DTRUN_LAUNCHER_CLI_OPTION_TABLE_H_

#include <string>
#include <vector>

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

}  // namespace dtrun::launcher

#endif
