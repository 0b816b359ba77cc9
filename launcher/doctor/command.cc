#include "launcher/doctor/command.h"

#include <algorithm>

#include "base/text.h"
#include "launcher/command_line.h"
#include "launcher/config.h"
#include "launcher/launch_error.h"
#include "launcher/option_table.h"
#include "launcher/settings.h"

namespace dtrun::launcher {
namespace {

using base::Text;

// By their keys in the table of a job's options.
constexpr const char* kTaken[] = {"hosts",         "hostfile", "slots-per-host", "config",
                                  "start-timeout", "ssh-port", "ssh-identity",   "mpi-args",
                                  "json",          "help"};

bool IsTaken(const OptionRow& row) {
  return std::find(std::begin(kTaken), std::end(kTaken), KeyOf(row)) != std::end(kTaken);
}

std::vector<const OptionRow*> TakenRows() {
  std::vector<const OptionRow*> rows;
  for (const OptionRow& row : OptionTable())
    if (IsTaken(row)) rows.push_back(&row);
  return rows;
}

// The help of a job says some things that are otherwise here.
std::string HelpOf(const OptionRow& row) {
  if (KeyOf(row) == "json") return "write all that is known as JSON; - is stdout";
  if (KeyOf(row) == "start-timeout") return "be done after this time (default: 60)";
  if (KeyOf(row) == "hosts") return "hosts to look at, with the ranks that each is to take";
  return row.help;
}

}  // namespace

DoctorRequest ReadDoctorRequest(
    const std::vector<std::string>& arguments, const Surroundings& surroundings) {
  const CommandLine line = ParseCommandLine(arguments);
  for (const Setting& setting : line.settings)
    if (!IsTaken(*setting.option))
      throw UsageError(Text(
          "dtrun doctor does not take ", TypedName(*setting.option),
          " (dtrun doctor --help lists what it takes)"));
  Settings settings = line.settings;
  DoctorRequest request;
  request.options = UnderstandSettings(MergeSettings(settings));
  request.help = request.options.action == Action::kHelp;
  if (request.help) return request;
  if (!line.config.empty())
    for (const Setting& setting : ParseConfig(line.config, surroundings.read_file(line.config)))
      settings.push_back(setting);
  request.options = UnderstandSettings(MergeSettings(settings));
  request.options.program = line.program;
  return request;
}

std::string DoctorHelp() {
  std::string options;
  for (const OptionRow* row : TakenRows()) {
    std::string left = Text("  ", row->spellings, TakesValue(*row) ? " " : "", row->value);
    left.resize(std::max<size_t>(left.size() + 2, 42), ' ');
    options += left + HelpOf(*row) + "\n";
  }
  return Text(
      "Looks whether a job could start: on all hosts at once, without starting a rank.\n"
      "Usage: dtrun doctor [OPTIONS] [PROGRAM]\n"
      "\n",
      options,
      "\n"
      "Hosts come from -H or --hostfile, else from TF_CONFIG, else from a Slurm allocation;\n"
      "otherwise this host is looked at. Each has to have a name with an address, an sshd that\n"
      "lets dtrun in without a question, this version of dtrun, the Open MPI of this host and, if\n"
      "PROGRAM is given, the same file with all its libraries. CPUs, NUMA nodes, GPUs, networks,\n"
      "memory, space for temporary files and clocks are reported.\n"
      "\n"
      "Exit code: 0 when a job could start, with warnings or without; 69 when something would "
      "stop\n"
      "it; 2 for a wrong command line. A program called doctor runs as dtrun ./doctor.\n");
}

std::vector<std::string> DoctorSpellings() {
  std::vector<std::string> spellings;
  for (const OptionRow* row : TakenRows())
    for (const std::string& spelling : base::Split(row->spellings, ','))
      spellings.push_back(spelling);
  return spellings;
}

}  // namespace dtrun::launcher
