#include "launcher/completion.h"

#include <algorithm>
#include <map>
#include <vector>

#include "base/text.h"
#include "launcher/option_table.h"

namespace dtrun::launcher {
namespace {

using base::Join;
using base::Split;
using base::Text;

// What may follow an option, as words of compgen.
std::string Candidates(const OptionRow& row) {
  const std::string value = row.value;
  if (value.starts_with("FILE")) return "-f";
  if (row.spellings == std::string("-x,--env")) return "-e";
  if (std::islower(static_cast<unsigned char>(value[0])) == 0) return "-W ''";
  return Text("-W '", Join(Split(value, '|'), " "), "'");
}

}  // namespace

std::string BashCompletion(const std::vector<std::string>& doctor_options) {
  std::vector<std::string> options;
  std::map<std::string, std::vector<std::string>> patterns;  // by what follows them
  for (const OptionRow& row : OptionTable())
    for (const std::string& spelling : Split(row.spellings, ',')) {
      options.push_back(spelling);
      if (TakesValue(row)) patterns[Candidates(row)].push_back(spelling);
    }
  std::string cases;
  for (const auto& [candidates, spellings] : patterns)
    cases += Text("    ", Join(spellings, " | "), ") printf '%s' \"", candidates, "\" ;;\n");
  return Text(
      "# bash completion for dtrun; written by dtrun --completion\n"
      "\n"
      "# What may follow option $1, for compgen; fails where nothing may.\n"
      "_dtrun_value() {\n"
      "  case $1 in\n",
      cases,
      "    *) return 1 ;;\n"
      "  esac\n"
      "}\n"
      "\n"
      "_dtrun() {\n"
      "  local word=${COMP_WORDS[COMP_CWORD]} value i first=1 commands=doctor\n"
      "  local options='",
      Join(options, " "),
      "'\n"
      "  if ((COMP_CWORD > 1)); then commands=; fi\n"
      "  if ((COMP_CWORD > 1)) && [[ ${COMP_WORDS[1]} == doctor ]]; then\n"
      "    first=2\n"
      "    options='",
      Join(doctor_options, " "),
      "'\n"
      "  fi\n"
      "  for ((i = first; i < COMP_CWORD; i++)); do\n"
      "    if value=$(_dtrun_value \"${COMP_WORDS[i]}\"); then\n"
      "      if ((i == COMP_CWORD - 1)); then\n"
      "        eval \"mapfile -t COMPREPLY < <(compgen $value -- \\\"\\$word\\\")\"\n"
      "        return\n"
      "      fi\n"
      "      i=$((i + 1))\n"
      "    elif [[ ${COMP_WORDS[i]} != -* ]]; then\n"
      "      mapfile -t COMPREPLY < <(compgen -f -- \"$word\") # an argument of the program\n"
      "      return\n"
      "    fi\n"
      "  done\n"
      "  if [[ $word == -* ]]; then\n"
      "    mapfile -t COMPREPLY < <(compgen -W \"$options\" -- \"$word\")\n"
      "  else\n"
      "    mapfile -t COMPREPLY < <(compgen -c -f -W \"$commands\" -- \"$word\")\n"
      "  fi\n"
      "}\n"
      "\n"
      "complete -o filenames -F _dtrun dtrun\n");
}

}  // namespace dtrun::launcher
