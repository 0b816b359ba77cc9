#ifndef DTRUN_LAUNCHER_CLI_OPTION_TABLE_H_
#define DTRUN_LAUNCHER_CLI_OPTION_TABLE_H_

#include <string>
#include <vector>

#include "launcher/plan/job_options.h"

namespace dtrun::launcher {

enum class OptionKind {
  kAction,  ///< what to do; takes no value and stands on the command line alone
  kFlag,
  kValue,
  kCommaList,  ///< one value with commas in it, in a configuration also a list
  kRepeated,   ///< may be given many times, in a configuration as a list
};

/// One option of dtrun: all that the command line, the help, the configuration file, --print-config
/// and the completion know of it.
struct OptionRow {
  const char* spellings;  ///< "-H,--hosts"; one of one dash and several letters is typed like that
  OptionKind kind;
  const char* value;  ///< what the help calls the value; "a|b" for a choice; "": a flag
  const char* group;
  const char* help;
  const char* initial;  ///< the value when nobody says one; "": none
  /// Understands one value. Throws UsageError saying what was expected. None for --config, which is
  /// read before all others.
  void (*apply)(const OptionRow& row, const std::string& text, Options& options);
  const char* knob = "";     ///< the option of the library that it sets (base/options.h); "": none
  const char* aliases = "";  ///< spellings of other launchers, accepted but not shown
};

/// In the order of the help.
const std::vector<OptionRow>& OptionTable();

/// All spellings as CLI11 wants them: "-np" is "--np".
std::vector<std::string> Spellings(const OptionRow& row);

/// How messages name the option: "-np", "--hosts".
std::string TypedName(const OptionRow& row);

/// Its key in a configuration file: "np", "hosts".
std::string KeyOf(const OptionRow& row);

bool TakesValue(const OptionRow& row);

/// Whether the short help shows the option.
bool IsCommon(const OptionRow& row);

/// What takes the place of an option of Horovod or torchrun here; "": none, or not theirs.
std::string ReplacementFor(const std::string& spelling);

}  // namespace dtrun::launcher

#endif
