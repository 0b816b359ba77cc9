// The Splitter divides the command line into options and program. CLI11 reads only the options,
// each with its value in one word. CLI11 accepts no option with one dash and several letters, so
// -np becomes --np. ReadRequest then merges these settings with the configuration file and the
// environment.

#include "launcher/cli/command_line.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "base/text.h"
#include "launcher/cli/option_settings.h"
#include "launcher/support/launch_error.h"
#include "launcher/support/quoting.h"

namespace dtrun::launcher {
namespace {

using base::Text;
using Words = std::vector<std::string>;

struct Parser {
  CLI::App app;
  std::map<const CLI::Option*, const OptionRow*> rows;

  Parser() {
    app.set_help_flag();
    for (const OptionRow& row : OptionTable()) {
      const std::string spellings = base::Join(Spellings(row), ",");
      CLI::Option* option =
          TakesValue(row) ? app.add_option(spellings)->take_all() : app.add_flag(spellings);
      rows[option] = &row;
    }
  }
};

[[noreturn]] void RefuseUnknown(const std::string& word, const std::string& help) {
  if (const std::string replacement = ReplacementFor(word); !replacement.empty())
    throw UsageError(Text("unknown option ", word, "; ", replacement));
  Words known;
  for (const OptionRow& row : OptionTable())
    for (const std::string& spelling : base::Split(row.spellings, ','))
      if (spelling.size() > 2) known.push_back(spelling);
  std::string meant = ClosestTo(word, known);
  if (meant.empty() && word[1] == '-') meant = ClosestTo(word.substr(1), known);
  throw UsageError(Text(
      "unknown option ", Excerpt(word),
      meant.empty() ? " (" + help + ")" : "; did you mean " + meant + "?"));
}

// An option word as CLI11 reads it: "-np=2" and "-np2" -> {"--np", "=2"}, "-Ha:1" -> {"-H", "a:1"}.
struct OptionWord {
  const CLI::Option* option;
  std::string name;
  std::string attached;  // the value in the same word, with its '=' if it has one; "": none
};

OptionWord ReadOptionWord(const CLI::App& app, const std::string& word, const std::string& help) {
  const size_t equals = word.find('=');
  const std::string name = word.substr(0, equals);
  const std::string attached = equals == std::string::npos ? "" : word.substr(equals);
  const std::string with_two = word.starts_with("--") ? name : "-" + name;
  if (const CLI::Option* option = app.get_option_no_throw(with_two))
    if (with_two.size() > 3) return {option, with_two, attached};
  if (word.starts_with("--")) RefuseUnknown(name, help);
  const size_t number = std::min(with_two.find_first_of("0123456789"), with_two.size());
  if (const CLI::Option* option = app.get_option_no_throw(with_two.substr(0, number)))
    if (number > 3)
      return {option, with_two.substr(0, number), "=" + with_two.substr(number) + attached};
  const CLI::Option* option = app.get_option_no_throw(word.substr(0, 2));
  if (option == nullptr) RefuseUnknown(name, help);
  return {option, word.substr(0, 2), word.substr(2)};
}

class Splitter {
 public:
  Splitter(const Parser& parser, const Words& arguments, const std::string& help)
      : parser_(parser), help_(help), next_(arguments.begin()), end_(arguments.end()) {}

  // The options. Each shares a word with its value, so CLI11 never reads a value as an option.
  Words TakeOptions() {
    Words options;
    while (next_ != end_ && next_->size() > 1 && next_->front() == '-') {
      const std::string word = *next_++;
      if (word == "--") break;
      options.push_back(TakeOption(word));
    }
    return options;
  }
  Words TakeProgram() const { return {next_, end_}; }

 private:
  std::string TakeOption(const std::string& word) {
    const OptionWord found = ReadOptionWord(parser_.app, word, help_);
    const OptionRow& row = *parser_.rows.at(found.option);
    const bool is_long = found.name.starts_with("--");
    const std::string typed = TypedName(row);
    if (!seen_.insert(&row).second && row.kind != OptionKind::kRepeated)
      throw UsageError(typed + " is given twice");
    if (!TakesValue(row)) {
      if (!found.attached.empty()) throw UsageError(typed + " takes no value");
      return found.name;
    }
    std::string value = found.attached;
    if (value.empty()) {
      if (next_ == end_) throw UsageError(typed + " needs a value");
      value = (is_long ? "=" : "") + *next_++;
    }
    if (value.empty() || value == "=") throw UsageError(typed + " needs a value, got ''");
    return found.name + value;
  }

  const Parser& parser_;
  const std::string& help_;
  Words::const_iterator next_;
  Words::const_iterator end_;
  std::set<const OptionRow*> seen_;
};

Settings ReadWithCli11(Parser& parser, Words options) {
  std::reverse(options.begin(), options.end());  // CLI11 reads a vector from its end
  try {
    parser.app.parse(options);
  } catch (const CLI::ParseError& error) {
    throw UsageError(error.what());
  }
  Settings settings;
  for (const auto& [option, row] : parser.rows) {
    if (option->count() == 0) continue;
    Setting setting = {row, Source::kCommandLine, {}};
    for (const std::string& text : option->results())
      setting.values.push_back({text, TypedName(*row)});
    settings.push_back(setting);
  }
  return settings;
}

// --config is the row without `apply`, because it is read before the other options.
std::string ConfigFile(const Settings& settings) {
  for (const Setting& setting : settings)
    if (setting.option->apply == nullptr) return setting.values[0].text;
  return "";
}

Settings ReadConfig(const std::string& file, const Surroundings& surroundings) {
  if (file.empty()) return {};
  return ParseConfig(file, ReadNamedFile("configuration", file, surroundings));
}

bool NeedsProgram(Action action) { return action == Action::kRun || action == Action::kDryRun; }

bool NeedsNothingElse(Action action) {
  return action == Action::kHelp || action == Action::kHelpAll || action == Action::kVersion ||
         action == Action::kCompletion || action == Action::kCheckBuild ||
         action == Action::kAttach;
}

}  // namespace

CommandLine ParseCommandLine(const std::vector<std::string>& arguments, const std::string& help) {
  Parser parser;
  Splitter splitter(parser, arguments, help);
  CommandLine line;
  line.settings = ReadWithCli11(parser, splitter.TakeOptions());
  line.program = splitter.TakeProgram();
  line.config = ConfigFile(line.settings);
  return line;
}

Request ReadRequest(const std::vector<std::string>& arguments, const Surroundings& surroundings) {
  const bool asks = arguments.size() == 1 && arguments[0] == "help";
  const CommandLine line = ParseCommandLine(
      asks ? Words{"--help"} : arguments,
      "dtrun --help lists the options; options of the program follow the program");
  Request request;
  request.settings = MergeSettings(line.settings);
  request.options = UnderstandSettings(request.settings);
  if (request.options.action == Action::kAttach && !line.program.empty())
    throw UsageError(Text(
        "--attach ", request.options.attach, ": found the program ", Excerpt(line.program[0]),
        "; expected no program, because the job runs already"));
  if (NeedsNothingElse(request.options.action)) return request;
  Settings all = line.settings;
  for (const Settings& more :
       {ReadConfig(line.config, surroundings), ReadEnvironment(surroundings.get)})
    all.insert(all.end(), more.begin(), more.end());
  request.settings = MergeSettings(all);
  request.options = UnderstandSettings(request.settings);
  request.options.program = line.program;
  CompleteOptions(request.options, surroundings);
  if (!request.options.json.empty() && request.options.action != Action::kDryRun)
    throw UsageError("--json needs --dry-run; add --dry-run");
  if (line.program.empty() && NeedsProgram(request.options.action))
    throw UsageError(
        "the program is missing; expected a program after the options, as in dtrun -np 2 ./train "
        "(dtrun --help lists the options)");
  return request;
}

namespace {

constexpr size_t kColumns = 80, kNames = 30;

// Wraps `text` at kColumns. All lines begin at column `first`. The caller has already filled the
// first line up to that column.
std::string Wrapped(const std::string& text, size_t first) {
  std::string lines;
  size_t column = first;
  for (const std::string& word : base::Split(text, ' ')) {
    const bool fits = column == first || column + 1 + word.size() <= kColumns;
    if (!fits) lines += '\n' + std::string(first, ' ');
    if (fits && column > first) lines += ' ';
    column = (fits && column > first ? column + 1 : first) + word.size();
    lines += word;
  }
  return lines + '\n';
}

std::string HelpOf(const OptionRow& row) {
  const std::string value = row.value, initial = row.initial;
  std::string line = Text("  ", row.spellings, value.empty() ? "" : " " + value);
  line += line.size() + 2 > kNames ? '\n' + std::string(kNames, ' ')
                                   : std::string(kNames - line.size(), ' ');
  const bool says = !initial.empty() && initial != "false";
  return line + Wrapped(says ? Text(row.help, " (default: ", initial, ")") : row.help, kNames);
}

constexpr char kUsage[] =
    "Starts N ranks of a program, on this host or on several.\n"
    "Usage: dtrun -np N [OPTIONS] PROGRAM [ARGUMENTS...]\n"
    "       dtrun doctor [OPTIONS] [PROGRAM]   checks whether a job can start\n";

constexpr char kAtEnd[] =
    "\n"
    "The first word that is no option is the program; all that follows belongs to it.\n"
    "Hosts come from -H or --hostfile, else from TF_CONFIG or a scheduler: Slurm,\n"
    "Grid Engine, PBS, LSF, Kubernetes; otherwise all N ranks run on this host,\n"
    "however few CPUs it has, and -np is required. Every rank gets RANK, WORLD_SIZE,\n"
    "LOCAL_RANK, LOCAL_WORLD_SIZE, TF_CONFIG and, unless you set them, MASTER_ADDR,\n"
    "MASTER_PORT and OMP_NUM_THREADS.\n"
    "\n"
    "Exit code: 0; that of the first failing rank, or 128 + its signal; 2 for a wrong\n"
    "command line, configuration or host file; 69 when Open MPI or a host is missing;\n"
    "73 when a result file cannot be written; 75 when the ranks were told to end and\n"
    "have saved; 76 when a rank stalled or left early; 124 after --timeout; 126 and\n"
    "127 when the program cannot be run or found; 130, 143 and 129 when ended by\n"
    "Ctrl-C, SIGTERM and SIGHUP.\n";

}  // namespace

std::string HelpText(bool all) {
  std::string text = kUsage, group;
  for (const OptionRow& row : OptionTable()) {
    if (!all && !IsCommon(row)) continue;
    if (row.group != group) text += Text('\n', row.group, ":\n");
    group = row.group;
    text += HelpOf(row);
  }
  return text + (all ? kAtEnd : "\nExample: dtrun -np 2 -H node1:1,node2:1 ./train --epochs 3\n");
}

namespace {

using base::Join;
using base::Split;
using base::Text;

// The arguments of compgen that list the values of an option. A choice may have placeholders, in
// capitals, besides its words: "auto|MIB".
std::string Candidates(const OptionRow& row) {
  const std::string value = row.value;
  if (value.starts_with("FILE")) return "-f";
  if (value == "DIR") return "-d";
  if (row.spellings == std::string("-x,--env")) return "-e";
  std::vector<std::string> words;
  for (const std::string& word : Split(value, '|'))
    if (const auto first = static_cast<unsigned char>(word[0]);
        std::islower(first) != 0 || std::isdigit(first) != 0)
      words.push_back(word);
  return Text("-W '", Join(words, " "), "'");
}

// The case labels of _dtrun_value. An alias is completed too, although no list of options has it.
std::string CandidateCases() {
  std::map<std::string, std::vector<std::string>> patterns;  // spellings by their Candidates
  for (const OptionRow& row : OptionTable()) {
    if (!TakesValue(row)) continue;
    for (const std::string& typed : {std::string(row.spellings), std::string(row.aliases)})
      for (const std::string& spelling : Split(typed, ','))
        if (!spelling.empty()) patterns[Candidates(row)].push_back(spelling);
  }
  std::string cases;
  for (const auto& [candidates, spellings] : patterns)
    cases += Text("    ", Join(spellings, " | "), ") printf '%s' \"", candidates, "\" ;;\n");
  return cases;
}

constexpr char kCompletionHead[] =
    R"(# bash completion for dtrun; written by dtrun --completion

# The words up to the cursor, in `words`. Bash also divides them at = and :, which dtrun does not.
# `starts` has the number of the first part of each.
_dtrun_words() {
  local rest=$COMP_LINE part i
  words=() starts=()
  for ((i = 0; i <= COMP_CWORD; i++)); do
    part=${COMP_WORDS[i]}
    if ((i > 0)) && [[ $rest != [[:space:]]* ]]; then
      words[-1]+=$part
    else
      words+=("$part")
      starts+=("$i")
    fi
    rest=${rest#*"$part"}
  done
}

# Programs that can run: by name those of PATH, by path any other. Also the folders on the way.
_dtrun_programs() {
  local folders folder file
  compgen -d -- "$1"
  if [[ $1 == */* ]]; then
    while IFS= read -r file; do
      if [[ -f ${file/#\~/$HOME} && -x ${file/#\~/$HOME} ]]; then printf '%s\n' "$file"; fi
    done < <(compgen -f -- "$1")
    return
  fi
  IFS=: read -ra folders <<<"$PATH"
  for folder in "${folders[@]}"; do
    while IFS= read -r file; do
      if [[ -f $file && -x $file ]]; then printf '%s\n' "${file##*/}"; fi
    done < <(compgen -f -- "$folder/$1")
  done
}

# The candidates for an argument of the program, which is word $1: those of the program's own
# completion, or files.
_dtrun_argument() {
  local program=${words[$1]} how i
  how=$(complete -p "${program##*/}" 2>/dev/null)
  if [[ -z $how ]] && declare -F _completion_loader >/dev/null; then
    _completion_loader "$program"
    how=$(complete -p "${program##*/}" 2>/dev/null)
  fi
  if [[ ! $how =~ ' -F '([^ ]+) ]]; then
    compgen -f -- "${words[-1]}"
    return
  fi
  COMP_LINE=${words[*]:$1} COMP_POINT=${#COMP_LINE}
  COMP_WORDS=("${COMP_WORDS[@]:${starts[$1]}}") COMP_CWORD=$((COMP_CWORD - ${starts[$1]})) COMPREPLY=()
  i=$COMP_CWORD
  "${BASH_REMATCH[1]}" "$program" "${COMP_WORDS[i]}" "${COMP_WORDS[i - 1]}"
  if ((${#COMPREPLY[@]})); then printf '%s\n' "${COMPREPLY[@]}"; fi
}

# The arguments of compgen for the value of option $1. Fails if the option takes no value.
_dtrun_value() {
  case $1 in
)";

constexpr char kCompletionBody[] =
    R"(    *) return 1 ;;
  esac
}

# The candidates for the last of `words`, a line each.
_dtrun_candidates() {
  local word=${words[-1]} last=$((${#words[@]} - 1)) first=1 i value
  if ((last > 1)) && [[ ${words[1]} == doctor ]]; then
    first=2
    options=$doctor_options
  fi
  for ((i = first; i < last; i++)); do
    if value=$(_dtrun_value "${words[i]}"); then
      if ((i == last - 1)); then
        eval "compgen $value -- \"\$word\""
        return
      fi
      i=$((i + 1))
    elif [[ ${words[i]} != -?* ]] || { [[ ${words[i]} == -- ]] && ((i < last - 1)); }; then
      if [[ ${words[i]} == -- ]]; then i=$((i + 1)); fi
      _dtrun_argument "$i"
      return
    fi
  done
  if [[ $word == -*=* ]] && value=$(_dtrun_value "${word%%=*}"); then
    eval "compgen -P \"\${word%%=*}=\" $value -- \"\${word#*=}\""
  elif [[ $word == -* ]]; then
    compgen -W "$options" -- "$word"
  else
    if ((last == 1)); then compgen -W doctor -- "$word"; fi
    _dtrun_programs "$word"
  fi
}

_dtrun() {
  local words starts kept part=${COMP_WORDS[COMP_CWORD]}
)";

constexpr char kCompletionEnd[] =
    R"(  _dtrun_words
  mapfile -t COMPREPLY < <(_dtrun_candidates)
  # Bash keeps the word as far as its last = or :.
  kept=${words[-1]}
  if [[ $part != [=:]* ]]; then kept=${kept%"$part"}; fi
  COMPREPLY=("${COMPREPLY[@]#"$kept"}")
}

complete -o filenames -F _dtrun dtrun
)";

}  // namespace

std::string BashCompletion(const std::vector<std::string>& doctor_options) {
  std::vector<std::string> options;
  for (const OptionRow& row : OptionTable())
    for (const std::string& spelling : Split(row.spellings, ',')) options.push_back(spelling);
  return Text(
      kCompletionHead, CandidateCases(), kCompletionBody, "  local options='", Join(options, " "),
      "'\n  local doctor_options='", Join(doctor_options, " "), "'\n", kCompletionEnd);
}

}  // namespace dtrun::launcher
