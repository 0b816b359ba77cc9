#include "launcher/support/environment.h"

#include <fnmatch.h>

#include <algorithm>
#include <cctype>
#include <set>

#include "base/text.h"
#include "launcher/support/launch_error.h"
#include "launcher/support/quoting.h"

namespace dtrun::launcher {
namespace {

using Words = std::vector<std::string>;

const Words& SecretPatterns() {
  static const Words patterns = {"*TOKEN*", "*SECRET*",      "*PASSWORD*",  "*_KEY",
                                 "AWS_*",   "SSH_AUTH_SOCK", "*CREDENTIAL*"};
  return patterns;
}

// Each host numbers its devices itself. The tasks of Slurm differ from host to host, too.
const Words& HostPatterns() {
  static const Words patterns = {"OMPI_*",         "PMIX_*",        "*_VISIBLE_DEVICES",
                                 "SLURM_PROCID",   "SLURM_LOCALID", "SLURM_NODEID",
                                 "SLURM_TASK_PID", "SLURM_GTIDS",   "SLURMD_NODENAME"};
  return patterns;
}

bool IsWordCharacter(unsigned char c) { return c < 128 && (std::isalnum(c) || c == '_'); }

bool IsShellName(const std::string& name) {
  return !name.empty() && !std::isdigit(static_cast<unsigned char>(name.front())) &&
         std::all_of(name.begin(), name.end(), IsWordCharacter);
}

bool MatchesAny(const std::string& name, const Words& patterns) {
  return std::any_of(patterns.begin(), patterns.end(), [&](const std::string& pattern) {
    return fnmatch(pattern.c_str(), name.c_str(), FNM_CASEFOLD) == 0;
  });
}

bool Goes(const std::string& name, const ForwardingRules& rules) {
  if (!IsShellName(name)) return false;
  if (std::find(rules.named.begin(), rules.named.end(), name) != rules.named.end()) return true;
  if (MatchesAny(name, rules.deny)) return false;
  if (MatchesAny(name, rules.allow)) return true;
  return !LooksSecret(name) && !MatchesAny(name, HostPatterns());
}

}  // namespace

std::string NameOf(const std::string& variable) { return variable.substr(0, variable.find('=')); }

std::string ValueOf(const Variables& variables, const std::string& name) {
  for (const std::string& variable : variables)
    if (variable.starts_with(name + "=")) return variable.substr(name.size() + 1);
  return "";
}

bool Has(const Variables& variables, const std::string& name) {
  return std::any_of(variables.begin(), variables.end(), [&](const std::string& variable) {
    return NameOf(variable) == name;
  });
}

void Set(Variables& variables, const std::string& name, const std::string& value) {
  Unset(variables, name);
  variables.push_back(name + "=" + value);
}

void Unset(Variables& variables, const std::string& name) {
  std::erase_if(variables, [&](const std::string& variable) { return NameOf(variable) == name; });
}

std::vector<char*> Pointers(const std::vector<std::string>& words) {
  std::vector<char*> pointers;
  for (const std::string& word : words) pointers.push_back(const_cast<char*>(word.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

bool LooksSecret(const std::string& name) { return MatchesAny(name, SecretPatterns()); }

std::vector<std::string> ForwardedNames(const Variables& variables, const ForwardingRules& rules) {
  Words names;
  for (const std::string& variable : variables)
    if (Goes(NameOf(variable), rules)) names.push_back(NameOf(variable));
  return names;
}

void CheckVariableName(const std::string& text) {
  if (text.find('=') != std::string::npos)
    throw UsageError(
        "expected a name without a value; set the variable in dtrun's own environment");
  if (!IsShellName(text))
    throw UsageError("expected the name of an environment variable (letters, digits and '_')");
}

void CheckVariablePattern(const std::string& text) {
  const bool valid = !text.empty() && std::all_of(text.begin(), text.end(), [](unsigned char c) {
    return IsWordCharacter(c) || c == '*' || c == '?';
  });
  if (!valid) throw UsageError("expected a pattern of letters, digits, '_', '*' and '?'");
}

std::string PrintedEnvironment(const Variables& variables, const std::vector<std::string>& names) {
  const std::set<std::string> everywhere(names.begin(), names.end());
  Words sorted = variables;
  std::sort(sorted.begin(), sorted.end());
  std::string all = "# all ranks\n";
  std::string here = "# ranks on this host alone\n";
  for (const std::string& variable : sorted) {
    const std::string name = NameOf(variable);
    const std::string value =
        LooksSecret(name) ? "<not shown>" : ShellQuoted(variable.substr(name.size() + 1));
    (everywhere.contains(name) ? all : here) += name + "=" + value + "\n";
  }
  return all + here;
}

}  // namespace dtrun::launcher
