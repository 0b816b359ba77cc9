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

/// Pointers to the words or variables, with a null pointer at the end, for execve. Valid as long as
/// `words`.
std::vector<char*> Pointers(const std::vector<std::string>& words);

/// Whether `name` looks like the name of a secret. The value of a secret is never shown.
bool LooksSecret(const std::string& name);

/// The user's rules for forwarding variables to other hosts.
struct ForwardingRules {
  std::vector<std::string> named = {};  ///< always forwarded
  std::vector<std::string> deny = {};   ///< patterns of names that are not forwarded
  std::vector<std::string> allow = {};  ///< patterns of names forwarded against the default
};

/// The names of the forwarded variables. By default these are all names, except secrets, the choice
/// of this host's devices, and variables of this host's Open MPI. A name that no shell can set
/// (BASH_FUNC_f%%) is never forwarded. `deny` wins over `allow`, and `named` over both. Patterns
/// use the shell's * and ? and ignore case.
std::vector<std::string> ForwardedNames(
    const Variables& variables, const ForwardingRules& rules = {});

/// Throw UsageError if `text` is not a valid name, or not a valid pattern.
void CheckVariableName(const std::string& text);
void CheckVariablePattern(const std::string& text);

/// The output of --print-env: the variables of all ranks, then those that stay on this host. Each
/// line is quoted for a shell. Values of secrets are left out.
std::string PrintedEnvironment(const Variables& variables, const std::vector<std::string>& names);

}  // namespace dtrun::launcher

#endif
