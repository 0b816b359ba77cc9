#include "launcher/options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <cstdint>
#include <memory>
#include <numeric>
#include <optional>
#include <set>

#include "base/text.h"
#include "launcher/hosts.h"
#include "launcher/launch_error.h"
#include "launcher/quoting.h"

namespace dtrun::launcher {
namespace {

using base::Text;

// The command line is cut in two before CLI11 sees it: the options, which it reads, and the program
// with its arguments, which nobody reads. CLI11 takes no option of one dash and two letters, so -np
// is --np for it.

struct RawOptions {
  std::string np;
  std::string hosts;
  std::vector<std::string> exported;
  std::string mpi_args;
  std::string flight_record;
  std::string tag, shown_ranks, output_dir;
  bool timestamps = false;
  bool verbose = false;
  bool dry_run = false;
  bool version = false;
  bool help = false;
};

class HelpFormatter : public CLI::Formatter {
 public:
  HelpFormatter() { column_width(34); }
  std::string make_usage(const CLI::App*, std::string) const override {
    return "Usage: dtrun -np N [OPTIONS] PROGRAM [ARGUMENTS...]\n";
  }
};

struct Parser {
  CLI::App app{"Starts a data-parallel job: N ranks of one program, on this host or on many."};
  RawOptions raw;

  Parser() {
    app.set_help_flag();
    app.add_option("--np", raw.np, "number of ranks; with -H it may be left out: all slots")
        ->type_name("N");
    app.add_option(
           "-H,--hosts", raw.hosts, "hosts and how many ranks each takes (default: this host)")
        ->type_name("HOST:SLOTS,...");
    app.add_option(
           "-x", raw.exported, "forward this environment variable to other hosts (repeatable)")
        ->type_name("NAME")
        ->expected(1)
        ->take_all();
    app.add_option("--mpi-args", raw.mpi_args, "more options for mpirun, in one word")
        ->type_name("\"...\"");
    app.add_option(
           "--flight-record", raw.flight_record,
           "write the last operations of every rank to this file (JSON)")
        ->type_name("FILE");
    app.add_option("--tag", raw.tag, "what stands in front of the ranks' lines (default: rank)")
        ->type_name("rank|host|none");
    app.add_flag("--timestamps", raw.timestamps, "and when the line began");
    app.add_option("--ranks", raw.shown_ranks, "show the output of these ranks alone: 0,3-5")
        ->type_name("LIST");
    app.add_option("--output-dir", raw.output_dir, "also write DIR/rank.N/stdout and stderr")
        ->type_name("DIR");
    app.add_flag("--verbose", raw.verbose, "print the mpirun command and what mpirun says itself");
    app.add_flag(
        "--dry-run", raw.dry_run, "print the mpirun command and where the ranks go; start nothing");
    app.add_flag("--version", raw.version, "print dtrun's version");
    app.add_flag("-h,--help", raw.help, "print this help");
  }

  // How the user writes the option that CLI11 calls `name`.
  static std::string Shown(const std::string& name) { return name == "--np" ? "-np" : name; }
};

struct SplitLine {
  std::vector<std::string> options;
  std::vector<std::string> program;
};

int EditDistance(const std::string& a, const std::string& b) {
  std::vector<int> row(b.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (size_t i = 0; i < a.size(); ++i) {
    int diagonal = row[0]++;
    for (size_t j = 0; j < b.size(); ++j) {
      const int replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, diagonal + 1});
    }
  }
  return row.back();
}

[[noreturn]] void RefuseUnknown(const CLI::App& app, const std::string& name) {
  std::string closest;
  int distance = 3;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& known : {"--" + option->get_single_name(), option->get_name()}) {
      if (known.size() < 4 || EditDistance(name, known) >= distance) continue;
      distance = EditDistance(name, known);
      closest = known;
    }
  }
  throw UsageError(Text(
      "unknown option ", ShellQuoted(name),
      closest.empty() ? " (dtrun --help lists the options; those of the program come after it)"
                      : "; did you mean " + Parser::Shown(closest) + "?"));
}

// "--hosts=a:1" and "-Ha:1" carry their value with them.
struct OptionWord {
  std::string name;
  bool has_value;
};

OptionWord ReadOptionWord(const std::string& word) {
  if (word.starts_with("--")) {
    const size_t equals = word.find('=');
    return {word.substr(0, equals), equals != std::string::npos};
  }
  const bool attached = word.starts_with("-H") || word.starts_with("-x");
  return {attached ? word.substr(0, 2) : word, attached && word.size() > 2};
}

SplitLine SplitAtProgram(const CLI::App& app, const std::vector<std::string>& arguments) {
  SplitLine line;
  std::set<const CLI::Option*> seen;
  auto next = arguments.begin();
  while (next != arguments.end() && next->size() > 1 && next->front() == '-') {
    if (*next == "--") {
      ++next;
      break;
    }
    const std::string word = *next == "-np" ? "--np" : *next;
    const OptionWord option = ReadOptionWord(word);
    const CLI::Option* known = app.get_option_no_throw(option.name);
    if (known == nullptr) RefuseUnknown(app, option.name);
    if (!seen.insert(known).second && option.name != "-x")
      throw UsageError(Text(Parser::Shown(option.name), " is given twice"));
    line.options.push_back(word);
    ++next;
    if (known->get_items_expected_max() == 0) {
      if (option.has_value) throw UsageError(Text(option.name, " takes no value"));
      continue;
    }
    if (option.has_value) continue;
    if (next == arguments.end())
      throw UsageError(Text(Parser::Shown(option.name), " needs a value"));
    // As one word, so that CLI11 never takes the value for an option.
    line.options.back() =
        option.name.starts_with("--") ? option.name + "=" + *next : option.name + *next;
    if (next->empty()) throw UsageError(Text(Parser::Shown(option.name), " needs a value, got ''"));
    ++next;
  }
  line.program.assign(next, arguments.end());
  return line;
}

void ReadWithCli11(CLI::App& app, std::vector<std::string> options) {
  std::reverse(options.begin(), options.end());  // CLI11 reads a vector from its end
  try {
    app.parse(options);
  } catch (const CLI::ParseError& error) {
    throw UsageError(error.what());
  }
}

int ParseRanks(const std::string& value) {
  const std::optional<int64_t> ranks = base::ParseInteger(value);
  if (!ranks || *ranks < 1 || *ranks > kMaxRanks)
    throw UsageError(
        Text("-np ", ShellQuoted(value), ": expected a number of ranks from 1 to ", kMaxRanks));
  return static_cast<int>(*ranks);
}

void CheckExported(const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    if (name.find('=') != std::string::npos)
      throw UsageError(Text(
          "-x ", ShellQuoted(name), ": expected a name alone; give it its value in dtrun's own ",
          "environment"));
    if (name.empty() || std::isdigit(static_cast<unsigned char>(name.front())) ||
        !std::all_of(
            name.begin(), name.end(), [](unsigned char c) { return std::isalnum(c) || c == '_'; }))
      throw UsageError(Text(
          "-x ", ShellQuoted(name), ": expected the name of an environment variable (letters, ",
          "digits and '_')"));
  }
}

void ReadPlacement(const RawOptions& raw, Options& options) {
  if (raw.np.empty() && raw.hosts.empty())
    throw UsageError("-np is missing: say how many ranks to start, such as dtrun -np 2 program");
  if (!raw.np.empty()) options.ranks = ParseRanks(raw.np);
  options.hosts = raw.hosts.empty() ? std::vector<HostSlots>{{"localhost", options.ranks}}
                                    : ParseHosts(raw.hosts);
  if (raw.np.empty()) options.ranks = base::RankCount(options.hosts);
}

}  // namespace

Options ParseCommandLine(const std::vector<std::string>& arguments) {
  Parser parser;
  SplitLine line = SplitAtProgram(parser.app, arguments);
  ReadWithCli11(parser.app, line.options);
  Options options;
  options.verbose = parser.raw.verbose;
  if (parser.raw.help) {
    options.action = Action::kHelp;
  } else if (parser.raw.version) {
    options.action = Action::kVersion;
  } else {
    if (parser.raw.dry_run) options.action = Action::kDryRun;
    ReadPlacement(parser.raw, options);
    CheckExported(parser.raw.exported);
    options.exported = parser.raw.exported;
    options.mpi_args = SplitWords(parser.raw.mpi_args);
    options.flight_record = parser.raw.flight_record;
    if (!parser.raw.tag.empty()) options.output.tag = ParseTag(parser.raw.tag);
    options.output.timestamps = parser.raw.timestamps;
    if (!parser.raw.shown_ranks.empty())
      options.output.ranks = ParseRankList(parser.raw.shown_ranks, options.ranks);
    options.output.folder = parser.raw.output_dir;
    if (line.program.empty()) throw UsageError("the program to run is missing");
    options.program = std::move(line.program);
  }
  return options;
}

std::string HelpText() {
  Parser parser;
  parser.app.formatter(std::make_shared<HelpFormatter>());
  std::string text = parser.app.help("dtrun");
  if (const size_t np = text.find("--np"); np != std::string::npos) text.replace(np, 4, "-np ");
  return text +
         "\n"
         "The first word that is no option is the program; all that follows belongs to it.\n"
         "Without -H, all N ranks run on this host, however few CPUs it has; -np is then "
         "required.\n"
         "Each rank gets its own share of the CPUs and finds its number of threads in\n"
         "OMP_NUM_THREADS, unless you set that yourself.\n"
         "\n"
         "Exit code: 0; that of the first failing rank, or 128 + its signal; 2 for a wrong "
         "command\n"
         "line; 69 when Open MPI or a host is missing; 73 when a result file cannot be written; "
         "76\n"
         "when a rank stalled or left early; 126 and 127 when the program cannot be run or found;\n"
         "130, 143 and 129 when ended by Ctrl-C, SIGTERM and SIGHUP.\n";
}

}  // namespace dtrun::launcher
