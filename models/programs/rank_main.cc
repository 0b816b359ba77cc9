#include "models/programs/rank_main.h"

#include <dtrun/c.h>
#include <dtrun/elastic.h>
#include <dtrun/error.h>
#include <dtrun/replicas.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <cctype>
#include <cstdio>
#include <exception>
#include <memory>
#include <new>
#include <numeric>
#include <sstream>
#include <utility>
#include <vector>

#include "models/train/agreement.h"

namespace dtrun::models {
namespace {

std::string OneLine(std::string text) {
  while (!text.empty() && text.back() == '\n') text.pop_back();
  for (char& c : text) {
    if (c == '\n') c = ' ';
  }
  return text;
}

// Levenshtein distance: the letters to insert, remove or replace between two words. Row by row.
size_t Distance(const std::string& a, const std::string& b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i + 1);
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, diagonal + 1});
    }
  }
  return row.back();
}

// CLI11 lists unexpected words from the last to the first.
std::string Unexpected(const CLI::App& app) {
  const std::vector<std::string> words = app.remaining();
  const auto option = std::find_if(
      words.begin(), words.end(), [](const auto& word) { return word.starts_with("-"); });
  if (option == words.end()) return "unexpected argument '" + words.front() + "'";
  const std::string name = option->substr(0, option->find('='));
  std::string meant;
  size_t least = 3;  // more distant words are not suggested
  for (const CLI::Option* known : app.get_options())
    for (const std::string& spelling : known->get_lnames()) {
      const size_t distance = Distance("--" + spelling, name);
      if (distance < least) meant = "; did you mean --" + spelling + "?";
      least = std::min(least, distance);
    }
  return "unknown option " + name + meant;
}

// Wraps `text` at 80 columns. The first line begins at column `used`, the others at `indent`.
std::string Wrapped(const std::string& text, size_t used, size_t indent) {
  constexpr size_t kColumns = 80;
  std::string lines;
  std::istringstream words(text);
  size_t column = used;
  for (std::string word; words >> word;) {
    if (column > indent && column + 1 + word.size() > kColumns) {
      lines += '\n' + std::string(indent, ' ');
      column = indent;
    } else if (column > indent) {
      lines += ' ';
      ++column;
    }
    lines += word;
    column += word.size();
  }
  return lines + '\n';
}

// CLI11's own formatter does not wrap lines, and shows internal types and checks.
class HelpPage : public CLI::Formatter {
 public:
  std::string make_description(const CLI::App* app) const override {
    std::istringstream lines(app->get_description());
    std::string wrapped;
    for (std::string line; std::getline(lines, line);) wrapped += Wrapped(line, 0, 0);
    return wrapped;
  }

  std::string make_option(const CLI::Option* option, bool is_positional) const override {
    constexpr size_t kTextColumn = 28;
    std::string left = "  " + NameOf(*option, is_positional);
    if (left.size() + 2 > kTextColumn)
      left += '\n' + std::string(kTextColumn, ' ');
    else
      left.resize(kTextColumn, ' ');
    return left + Wrapped(option->get_description(), kTextColumn, kTextColumn);
  }

 private:
  static std::string NameOf(const CLI::Option& option, bool is_positional) {
    const std::string names = option.get_name(is_positional, !is_positional);
    const std::string name = names.substr(0, names.find('{'));  // "--no-tf32{false}"
    if (is_positional || option.get_items_expected_max() == 0) return name;
    const std::string types = option.get_type_name();
    const std::string type = types.substr(0, types.find(':'));  // "N:INT in [1 - 4096]"
    return name + ' ' + (option.get_expected_min() == 0 ? '[' + type + ']' : type);
  }
};

std::string HelpOf(const CLI::App& app) {
  std::string help = app.help();
  for (size_t at; (at = help.find("\n\n\n")) != std::string::npos;) help.erase(at, 1);
  return help;
}

// The arguments of compgen that list the values of an option. The alternatives are in the text of
// a check, as in "NAME:fit|custom", or in the type, as in "N|auto". Words in capitals are
// placeholders.
std::string Candidates(const CLI::Option& option) {
  const std::string types = option.get_type_name();
  const size_t colon = types.find(':');
  const std::string type = types.substr(0, colon);
  if (type == "DIR") return "-d";
  if (type == "FILE") return "-f";
  const bool has_check = colon != std::string::npos;
  if (has_check && types.find('|', colon) == std::string::npos) return "-W ''";
  std::istringstream alternatives(has_check ? types.substr(colon + 1) : type);
  std::string words;
  for (std::string word; std::getline(alternatives, word, '|');)
    if (has_check || std::isupper(static_cast<unsigned char>(word[0])) == 0) words += ' ' + word;
  return "-W '" + words + "'";
}

std::string Replaced(std::string text, const std::string& name, const std::string& value) {
  for (size_t at = 0; (at = text.find(name, at)) != std::string::npos; at += value.size())
    text.replace(at, name.size(), value);
  return text;
}

constexpr char kCompletion[] = R"bash(# bash completion for PROGRAM; written by PROGRAM --completion

# The arguments of compgen for the value of option $1. Fails if the option takes no value.
_PROGRAM_value() {
  case $1 in
CASES    *) return 1 ;;
  esac
}

_PROGRAM() {
  local word=${COMP_WORDS[COMP_CWORD]} option=${COMP_WORDS[COMP_CWORD - 1]} value
  # Bash divides words at =.
  if [[ $word == = ]]; then
    word=
  elif [[ $option == = ]]; then
    option=${COMP_WORDS[COMP_CWORD - 2]}
  fi
  if value=$(_PROGRAM_value "$option"); then
    eval "mapfile -t COMPREPLY < <(compgen $value -- \"\$word\")"
  elif [[ $word == -* ]]; then
    mapfile -t COMPREPLY < <(compgen -W 'OPTIONS' -- "$word")
  else
    mapfile -t COMPREPLY < <(compgen -f -- "$word")
  fi
}

complete -o filenames -F _PROGRAM PROGRAM
)bash";

std::string BashCompletion(const CLI::App& app) {
  std::string options, cases;
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_positional()) continue;
    const std::string names = option->get_name(false, true);  // "-h,--help"
    std::istringstream spellings(names.substr(0, names.find('{')));
    std::string pattern;
    for (std::string spelling; std::getline(spellings, spelling, ',');) {
      options += (options.empty() ? "" : " ") + spelling;
      pattern += (pattern.empty() ? "" : " | ") + spelling;
    }
    if (option->get_items_expected_max() > 0 && option->get_expected_min() > 0)
      cases += "    " + pattern + ") printf '%s' \"" + Candidates(*option) + "\" ;;\n";
  }
  const std::string script = Replaced(kCompletion, "CASES", cases);
  return Replaced(Replaced(script, "OPTIONS", options), "PROGRAM", app.get_name());
}

}  // namespace

std::string ParseCommandLine(
    CLI::App& app, int argc, const char* const* argv, std::string& help,
    const std::function<std::string()>& check) {
  app.formatter(std::make_shared<HelpPage>());
  app.add_flag_callback(
         "--completion", [] { throw CLI::Success(); },
         "Print a completion script for bash and exit")
      ->group("Options");
  app.get_help_ptr()->description("Print this help and exit");
  app.set_version_flag(
         "--version", app.get_name() + " " + dtrun_version(), "Print the version of dtrun and exit")
      ->group("Options");
  try {
    app.parse(argc, argv);
    return check ? check() : "";
  } catch (const CLI::CallForHelp&) {
    help = HelpOf(app);
  } catch (const CLI::CallForVersion&) {
    help = app.version() + '\n';
  } catch (const CLI::Success&) {
    help = BashCompletion(app);
  } catch (const CLI::ExtrasError&) {
    return OneLine(Unexpected(app));
  } catch (const CLI::ParseError& error) {
    return OneLine(error.what());
  }
  return "";
}

std::string CommandText(int argc, const char* const* argv) {
  constexpr char kPlain[] =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-./=:,+@%";
  std::string command;
  for (int i = 0; i < argc; ++i) {
    const std::string word = argv[i];
    if (i > 0) command += ' ';
    if (!word.empty() && word.find_first_not_of(kPlain) == std::string::npos) {
      command += word;
      continue;
    }
    command += '\'';
    for (char c : word) command += c == '\'' ? std::string("'\\''") : std::string(1, c);
    command += '\'';
  }
  return command;
}

int Complain(const std::string& program, const std::string& problem, int exit_code) {
  std::fprintf(stderr, "%s: %s\n", program.c_str(), problem.c_str());
  return exit_code;
}

int RunAsRank(const std::string& program, const std::function<int(Context& job)>& body) {
  const auto work = [&](Context& job) {
    try {
      return body(job);
    } catch (const AgreedError& error) {
      // After a loss, the ranks cannot end together.
      if (error.code() == ErrorCode::kPeerLost) throw;
      // A worker of parameter servers agrees only with itself, except about the command line.
      const bool alone = job.parameter_servers() > 0 && error.exit_code() != kUsage;
      if (job.rank() == 0 || alone) Complain(program, error.what(), error.exit_code());
      return error.exit_code();
    }
  };
  try {
    return RunElastic(work);
  } catch (const Error& error) {
    return Complain(program, error.what(), ExitCodeOf(error.code()));
  } catch (const std::bad_alloc&) {
    return Complain(program, "not enough memory", kInternal);
  } catch (const std::exception& error) {
    return Complain(program, error.what(), kInternal);
  }
}

namespace {

// Rethrows `error`, the current exception, as the error of all ranks.
[[noreturn]] void ThrowForAll(Context& job, const std::string& spec, const Error& error) {
  const bool refused =
      error.code() == ErrorCode::kInvalidArgument || error.code() == ErrorCode::kUnavailable;
  const bool worker = job.rank() >= job.parameter_servers() && job.parameter_servers() > 0;
  if (worker && spec.rfind("parameter_server", 0) == 0) throw;  // for example, about its device
  throw AgreedError(error.code(), refused ? int{kUsage} : ExitCodeOf(error.code()), error.what());
}

}  // namespace

std::unique_ptr<Strategy> MakeNamedStrategy(
    Context& job, const std::string& spec, const std::optional<Device>& own) {
  try {
    return MakeStrategy(job, spec, own);
  } catch (const Error& error) {
    ThrowForAll(job, spec, error);
  }
}

void RunNamedReplicas(
    Context& job, const std::string& spec, const std::function<void(Strategy&)>& body) {
  std::atomic<bool> is_made = false;
  try {
    RunReplicas(job, spec, [&](Strategy& strategy) {
      is_made = true;
      body(strategy);
    });
  } catch (const Error& error) {
    if (is_made) throw;
    ThrowForAll(job, spec, error);
  }
}

}  // namespace dtrun::models
