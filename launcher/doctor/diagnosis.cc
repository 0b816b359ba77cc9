// Each Check function compares one group of facts with the expected values and appends findings.
// DoctorText and DoctorJson print the looks with their findings.

#include "launcher/doctor/diagnosis.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "base/json.h"
#include "base/text.h"
#include "base/version.h"
#include "launcher/engines/mpirun.h"
#include "launcher/support/quoting.h"

namespace dtrun::launcher {
namespace {

using base::Join;
using base::JsonText;
using base::Text;
using Findings = std::vector<Finding>;

constexpr int64_t kMiB = 1 << 20;
constexpr int64_t kLittleTemporary = 100 * kMiB;
constexpr int64_t kLittleMemory = 256 * kMiB;
constexpr double kMostClockOffset = 1;  // seconds

// Only a job with MPI loads libdtrun_mpi.so.
std::vector<std::string> NeededLibraries(const InstallationFacts& found, bool needs_open_mpi) {
  std::vector<std::string> missing = found.missing_libraries;
  if (!needs_open_mpi)
    std::erase_if(
        missing, [](const std::string& library) { return library.ends_with("libdtrun_mpi.so)"); });
  return missing;
}

void CheckInstallation(const InstallationFacts& found, bool needs_open_mpi, Findings& findings) {
  const std::vector<std::string> missing_libraries = NeededLibraries(found, needs_open_mpi);
  if (!found.missing_files.empty())
    findings.push_back(
        {true, "dtrun", Join(found.missing_files, " and ") + " is missing", "a whole installation",
         "install dtrun again on the host"});
  if (!missing_libraries.empty())
    findings.push_back(
        {true, "libraries of dtrun", "missing: " + Join(missing_libraries, ", "), "all libraries",
         "install the same version of Open MPI as here"});
}

void CheckOpenMpi(
    const InstallationFacts& found, const InstallationFacts& here, Findings& findings) {
  const std::string supported = "mpirun of Open MPI 4 or 5";
  const std::string expected =
      here.mpirun.empty() ? supported : Text(here.mpirun_version, " at ", here.mpirun, ", as here");
  if (found.mpirun.empty()) {
    findings.push_back(
        {true, "Open MPI", here.mpirun.empty() ? "no mpirun in PATH" : "no " + here.mpirun,
         &found == &here ? supported : expected,
         "install Open MPI (Debian, Ubuntu: apt-get install openmpi-bin)"});
  } else if (OpenMpiOf(found.mpirun_version) == 0) {
    findings.push_back(
        {true, "Open MPI", Excerpt(found.mpirun_version), supported,
         "install Open MPI, first in PATH"});
  } else if (found.mpirun_version != here.mpirun_version) {
    findings.push_back(
        {true, "Open MPI", found.mpirun_version, expected, "install the same version everywhere"});
  } else if (!found.has_orted) {
    findings.push_back(
        {true, "Open MPI", Text(found.mpirun, " without orted beside it"), "mpirun and orted",
         "install Open MPI again"});
  }
}

// `host` is empty for this machine. `here` may have no program.
std::string CopyTo(const std::string& host, const ProgramFacts& here) {
  if (host.empty() || here.file.empty() || !here.problem.empty()) return "";
  const std::string file = ShellQuoted(here.file);
  return Text("scp ", file, ' ', host, ':', file);
}

void CheckProgram(
    const std::string& host, const ProgramFacts& found, const ProgramFacts& here,
    Findings& findings) {
  if (found.file.empty()) return;
  if (!found.problem.empty())
    findings.push_back(
        {true, "program", found.problem, "a program that can be run, at the same path on all hosts",
         CopyTo(host, here)});
  if (!found.missing_libraries.empty())
    findings.push_back(
        {true, "libraries of the program", "missing: " + Join(found.missing_libraries, ", "),
         "all libraries",
         "install the libraries on the host, or name their folder in LD_LIBRARY_PATH"});
  constexpr size_t kDigits = 12;
  if (!found.sha256.empty() && !here.sha256.empty() && found.sha256 != here.sha256)
    findings.push_back(
        {true, "program",
         Text(ShellQuoted(found.file), " with SHA-256 ", found.sha256.substr(0, kDigits), "..."),
         Text(here.sha256.substr(0, kDigits), "..., as here"), CopyTo(host, here)});
}

// An MPI without its own launcher takes each rank for a job of one process.
void CheckMpi(const ProgramFacts& found, bool starts_by_open_mpi, Findings& findings) {
  for (const std::string& library : found.mpi_libraries) {
    if (starts_by_open_mpi && library == "libmpi.so.40") continue;
    if (starts_by_open_mpi)
      findings.push_back(
          {true, "MPI of the program", library, "libmpi.so.40 of Open MPI, or no MPI",
           "compile the program with the mpicxx of Open MPI: to another MPI, each rank would be a "
           "job of its own"});
    else
      findings.push_back(
          {false, "MPI of the program", library, "no MPI with this launcher",
           "if the program calls MPI_Init, each rank is a job of its own; --launcher mpirun starts "
           "programs of Open MPI"});
  }
}

std::string Number(double number) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g", number);
  return text;
}

void CheckCpus(const CpuFacts& cpus, int slots, Findings& findings) {
  const double usable = cpus.quota > 0 ? std::min<double>(cpus.quota, cpus.allowed) : cpus.allowed;
  if (usable <= 0 || slots <= usable) return;
  const char* why = cpus.quota > 0 && cpus.quota < cpus.allowed ? " (quota of the control group)"
                    : cpus.allowed < cpus.total                 ? " (cpuset)"
                                                                : "";
  findings.push_back(
      {false, "CPUs", Text(Number(usable), why), Text("one for each of ", slots, " ranks"),
       "ranks will take turns"});
}

void CheckMemory(const MemoryFacts& memory, Findings& findings) {
  const std::string folder = ShellQuoted(memory.temporary_folder);
  if (!memory.temporary_writable)
    findings.push_back(
        {true, folder, "no permission to write", "a folder for temporary files",
         "set TMPDIR to a folder that you may write to"});
  else if (memory.temporary_free_bytes < kLittleTemporary)
    findings.push_back(
        {false, folder, Text(memory.temporary_free_bytes / kMiB, " MiB free"),
         Text("at least ", kLittleTemporary / kMiB, " MiB"), "remove files that nobody needs"});
  if (memory.available_bytes < kLittleMemory)
    findings.push_back(
        {false, "memory", Text(memory.available_bytes / kMiB, " MiB free"),
         Text("at least ", kLittleMemory / kMiB, " MiB"), "end other programs on the host"});
}

void CheckClock(const HostLook& look, Findings& findings) {
  const double offset = look.clock_offset_s;
  if (std::abs(offset) - look.clock_uncertainty_s <= kMostClockOffset) return;
  findings.push_back(
      {false, "clock", Text(Number(std::abs(offset)), " s ", offset > 0 ? "ahead" : "behind"),
       "within 1 s of this host's",
       "let NTP or chrony set the clock; otherwise times in logs do not compare"});
}

}  // namespace

std::vector<Finding> FindingsOf(const HostLook& look, const HostLook& here, bool needs_open_mpi) {
  Findings findings = look.reach;
  if (look.answered) {
    CheckInstallation(look.facts.installation, needs_open_mpi, findings);
    if (needs_open_mpi) CheckOpenMpi(look.facts.installation, here.facts.installation, findings);
    const bool is_here = look.address.empty();
    CheckProgram(is_here ? "" : look.host, look.facts.program, here.facts.program, findings);
    CheckMpi(look.facts.program, needs_open_mpi, findings);
    CheckCpus(look.facts.cpus, look.slots, findings);
    CheckMemory(look.facts.memory, findings);
    CheckClock(look, findings);
  }
  std::stable_partition(
      findings.begin(), findings.end(), [](const Finding& finding) { return finding.stops_job; });
  return findings;
}

bool StopsJob(const std::vector<Finding>& findings) {
  return std::any_of(
      findings.begin(), findings.end(), [](const Finding& finding) { return finding.stops_job; });
}

namespace {

using base::Join;
using base::Text;
using nlohmann::json;
using Cells = std::vector<std::string>;

template <typename... Values>
std::string Formatted(const char* format, Values... values) {
  char text[64];
  std::snprintf(text, sizeof text, format, values...);
  return text;
}

std::string Gibibytes(int64_t bytes) {
  const double gib = static_cast<double>(bytes) / (1 << 30);
  return Formatted(gib < 10 ? "%.1f GiB" : "%.0f GiB", gib);
}

std::string State(const Diagnosis& host) {
  if (StopsJob(host.findings)) return "PROBLEM";
  return host.findings.empty() ? "ok" : "warning";
}

std::string CpuCell(const CpuFacts& cpus) {
  std::string cell =
      cpus.allowed < cpus.total ? Text(cpus.allowed, " of ", cpus.total) : Text(cpus.total);
  if (cpus.quota > 0) cell += Formatted(", quota %.3g", cpus.quota);
  return cell;
}

std::string GpuCell(const std::vector<GpuFacts>& gpus) {
  if (gpus.empty()) return "none";
  Cells kinds, links;
  for (size_t i = 0; i < gpus.size(); ++i) {
    const std::string kind = Text(gpus[i].name, ' ', Gibibytes(gpus[i].memory_bytes));
    if (std::find(kinds.begin(), kinds.end(), kind) == kinds.end()) kinds.push_back(kind);
    for (size_t j = 0; j < gpus[i].links.size(); ++j)
      if (i != j && std::find(links.begin(), links.end(), gpus[i].links[j]) == links.end())
        links.push_back(gpus[i].links[j]);
  }
  return Text(gpus.size(), " x ", Join(kinds, ", "), links.empty() ? "" : "; " + Join(links, ", "));
}

std::string SpeedText(int mbit) {
  if (mbit == 0) return "";
  return mbit < 1000 ? Text(' ', mbit, " Mbit/s") : Formatted(" %.3g Gbit/s", mbit / 1000.0);
}

// The interfaces that can carry a job: devices, and the interface with the host's address. If there
// are none, as in a container, all other interfaces.
std::string NetworkCell(const HostLook& look) {
  Cells devices, others;
  for (const Interface& interface : look.facts.interfaces) {
    if (interface.address.empty() || interface.kind == InterfaceKind::kLoopback) continue;
    const bool counts =
        interface.kind == InterfaceKind::kDevice || interface.address == look.address;
    (counts ? devices : others).push_back(interface.name + SpeedText(interface.speed_mbit));
  }
  const Cells& shown = devices.empty() ? others : devices;
  return shown.empty() ? "none" : Join(shown, ", ");
}

std::string ClockCell(const HostLook& look) {
  if (look.address.empty()) return "";
  const double off = look.clock_offset_s, unsure = look.clock_uncertainty_s;
  if (std::abs(off) < 1) return Formatted("%+.1f ms +- %.1f", off * 1e3, unsure * 1e3);
  return Formatted("%+.1f s", off);
}

Cells RowOf(const Diagnosis& host) {
  const HostLook& look = host.look;
  Cells row = {look.host, State(host), look.address.empty() ? "this host" : look.address};
  if (!look.answered) {
    if (look.address.empty()) row.back() = "";
    row.resize(10);
    return row;
  }
  const HostFacts& facts = look.facts;
  for (const std::string& cell :
       {CpuCell(facts.cpus), Text(facts.cpus.numa_nodes), GpuCell(facts.gpus), NetworkCell(look),
        Gibibytes(facts.memory.available_bytes), Gibibytes(facts.memory.temporary_free_bytes),
        ClockCell(look)})
    row.push_back(cell);
  return row;
}

std::string Table(const std::vector<Cells>& rows) {
  std::vector<size_t> widths;
  for (const Cells& row : rows)
    for (size_t i = 0; i < row.size(); ++i) {
      if (i == widths.size()) widths.push_back(0);
      widths[i] = std::max(widths[i], row[i].size());
    }
  std::string text;
  for (const Cells& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i)
      line += row[i] + std::string(widths[i] - row[i].size() + 2, ' ');
    text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return text;
}

std::string FindingLine(const std::string& host, const Finding& finding) {
  const std::string line = Text(
      finding.stops_job ? "PROBLEM " : "warning ", host, ": ", finding.thing, ": found ",
      finding.found, "; expected ", finding.expected,
      finding.advice.empty() ? "" : " -> " + finding.advice, '\n');
  std::string one_line;
  for (char c : line.substr(0, line.size() - 1))
    one_line += static_cast<unsigned char>(c) < ' ' ? ' ' : c;
  return one_line + "\n";
}

// The launcher, and the versions and the program of this machine. They hold for all hosts without a
// finding about them.
std::string Heading(const HostLook& here, const std::string& launcher) {
  std::string text = Text("dtrun ", base::kVersion, ", launcher ", launcher);
  const InstallationFacts& installation = here.facts.installation;
  if (!installation.mpirun.empty())
    text += Text(", ", installation.mpirun, ": ", installation.mpirun_version);
  const ProgramFacts& program = here.facts.program;
  if (!program.file.empty()) {
    text += ", program " + ShellQuoted(program.file);
    if (!program.sha256.empty()) text += ": SHA-256 " + program.sha256.substr(0, 12) + "...";
  }
  return text + "\n";
}

std::string Conclusion(const std::vector<Diagnosis>& hosts) {
  Cells bad;
  for (const Diagnosis& host : hosts)
    if (StopsJob(host.findings)) bad.push_back(host.look.host);
  if (!bad.empty())
    return Text(
        bad.size(), " of ", hosts.size(), hosts.size() == 1 ? " host" : " hosts",
        " would stop a job: ", Join(bad, ", "), '\n');
  return hosts.size() == 1 ? "The host is ready.\n"
                           : Text("All ", hosts.size(), " hosts are ready.\n");
}

}  // namespace

std::string DoctorText(
    const std::vector<Diagnosis>& hosts, const HostLook& here, const std::string& launcher) {
  std::vector<Cells> rows = {
      {"HOST", "STATE", "ADDRESS", "CPUS", "NUMA", "GPUS", "NETWORK", "FREE MEMORY", "FREE TMP",
       "CLOCK"}};
  std::string findings;
  for (const Diagnosis& host : hosts) {
    rows.push_back(RowOf(host));
    for (const Finding& finding : host.findings) findings += FindingLine(host.look.host, finding);
  }
  return Heading(here, launcher) + "\n" + Table(rows) + "\n" + findings + Conclusion(hosts);
}

std::string DoctorJson(
    const std::vector<Diagnosis>& hosts, const HostLook& here, const std::string& launcher) {
  json list = json::array();
  for (const Diagnosis& host : hosts) {
    json entry = {{"host", host.look.host},       {"state", State(host)},
                  {"address", host.look.address}, {"slots", host.look.slots},
                  {"findings", host.findings},    {"facts", nullptr}};
    if (host.look.answered) {
      entry["facts"] = host.look.facts;
      entry["clock_offset_s"] = host.look.clock_offset_s;
      entry["clock_uncertainty_s"] = host.look.clock_uncertainty_s;
    }
    list.push_back(std::move(entry));
  }
  const json report = {
      {"version", base::kVersion},
      {"ready", AllReady(hosts)},
      {"here", here.facts.host_name},
      {"launcher", launcher},
      {"hosts", list}};
  return JsonText(report, 2) + "\n";
}

bool AllReady(const std::vector<Diagnosis>& hosts) {
  return std::none_of(
      hosts.begin(), hosts.end(), [](const Diagnosis& host) { return StopsJob(host.findings); });
}

}  // namespace dtrun::launcher
