#ifndef DTRUN_LAUNCHER_SUPPORT_ENVIRONMENT_H_
#define DTRUN_LAUNCHER_SUPPORT_ENVIRONMENT_H_

#include <string>
#include <vector>

namespace dtrun::launcher {

/// The variables of a process, NAME=value.
using Variables = std::vector<std::string>;

std::string NameOf(const std::string& variable);
bool Has(const Variables& variables, const std::string& name);
/// "" if there is no such variable.
std::string ValueOf(const Variables& variables, const std::string& name);
/// Adds the variable or replaces its value.
void Set(Variables& variables, const std::string& name, const std::string& value);
void Unset(Variables& variables, const std::string& name);

/// Whether `name` looks like that of a secret: its value is never shown.
bool LooksSecret(const std::string& name);

/// Which variables go to other hosts besides what they find there.
struct ForwardingRules {
  std::vector<std::string> named = {};  ///< in any case
  std::vector<std::string> deny = {};   ///< patterns that stay here
  std::vector<std::string> allow = {};  ///< patterns that go although they would stay by default
};

/// The names that go. By default that is all but those that look like secrets, those that say which
/// devices of this host to use and what belongs to this host's Open MPI. A name that no shell could
/// set (BASH_FUNC_f%%) never goes. `deny` wins over `allow`, `named` over both; patterns are the
/// shell's, * and ?, in any case of letters.
std::vector<std::string> ForwardedNames(
    const Variables& variables, const ForwardingRules& rules = {});

/// Throw UsageError for what is no name or no pattern of names.
void CheckVariableName(const std::string& text);
void CheckVariablePattern(const std::string& text);

/// What --print-env prints: the variables that all ranks have and those that stay on this host, one
/// a line as a shell reads them, without the values of secrets.
std::string PrintedEnvironment(const Variables& variables, const std::vector<std::string>& names);

}  // namespace dtrun::launcher

#endif
