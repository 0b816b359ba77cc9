#include "launcher/doctor/findings.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "base/text.h"
#include "launcher/mpirun.h"
#include "launcher/quoting.h"

namespace dtrun::launcher {
namespace {

using base::Join;
using base::Text;
using Findings = std::vector<Finding>;

constexpr int64_t kMiB = 1 << 20;
constexpr int64_t kLittleTemporary = 100 * kMiB;
constexpr int64_t kLittleMemory = 256 * kMiB;
constexpr double kMostClockOffset = 1;  // seconds

void CheckInstallation(const InstallationFacts& found, Findings& findings) {
  if (!found.missing_files.empty())
    findings.push_back(
        {true, "dtrun", Join(found.missing_files, " and ") + " is missing", "a whole installation",
         "install dtrun there again"});
  if (!found.missing_libraries.empty())
    findings.push_back(
        {true, "libraries of dtrun", "missing: " + Join(found.missing_libraries, ", "),
         "all of them", "install Open MPI there, of the same version as here"});
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
         "install it (Debian, Ubuntu: apt-get install openmpi-bin)"});
  } else if (!IsSupportedMpirun(found.mpirun_version)) {
    findings.push_back({true, "Open MPI", Excerpt(found.mpirun_version), supported, ""});
  } else if (found.mpirun_version != here.mpirun_version) {
    findings.push_back(
        {true, "Open MPI", found.mpirun_version, expected, "install the same version everywhere"});
  } else if (!found.has_orted) {
    findings.push_back(
        {true, "Open MPI", Text(found.mpirun, " without orted beside it"), "the whole of Open MPI",
         "install it again"});
  }
}

void CheckProgram(const ProgramFacts& found, const ProgramFacts& here, Findings& findings) {
  if (found.file.empty()) return;
  if (!found.problem.empty())
    findings.push_back(
        {true, "program", found.problem, "a program that can be run, at the same path on all hosts",
         ""});
  if (!found.missing_libraries.empty())
    findings.push_back(
        {true, "libraries of the program", "missing: " + Join(found.missing_libraries, ", "),
         "all of them", "install them there, or name their folder in LD_LIBRARY_PATH"});
  constexpr size_t kDigits = 12;
  if (!found.sha256.empty() && !here.sha256.empty() && found.sha256 != here.sha256)
    findings.push_back(
        {true, "program",
         Text(ShellQuoted(found.file), " with SHA-256 ", found.sha256.substr(0, kDigits), "..."),
         Text(here.sha256.substr(0, kDigits), "..., as here"), "copy this one to all hosts"});
}

std::string Number(double number) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g", number);
  return text;
}

void CheckCpus(const CpuFacts& cpus, int slots, Findings& findings) {
  const double usable = cpus.quota > 0 ? std::min<double>(cpus.quota, cpus.allowed) : cpus.allowed;
  if (usable <= 0 || slots <= usable) return;
  const char* why = cpus.quota > 0 && cpus.quota < cpus.allowed ? " (quota of its control group)"
                    : cpus.allowed < cpus.total                 ? " (its cpuset)"
                                                                : "";
  findings.push_back(
      {false, "CPUs", Text(Number(usable), why), Text("one for each of ", slots, " ranks"),
       "ranks will take turns"});
}

void CheckMemory(const MemoryFacts& memory, Findings& findings) {
  const std::string folder = ShellQuoted(memory.temporary_folder);
  if (!memory.temporary_writable)
    findings.push_back(
        {true, folder, "it cannot be written to", "a folder for temporary files",
         "set TMPDIR to one"});
  else if (memory.temporary_free_bytes < kLittleTemporary)
    findings.push_back(
        {false, folder, Text(memory.temporary_free_bytes / kMiB, " MiB free"),
         Text("at least ", kLittleTemporary / kMiB, " MiB"), "remove what is not needed there"});
  if (memory.available_bytes < kLittleMemory)
    findings.push_back(
        {false, "memory", Text(memory.available_bytes / kMiB, " MiB free"),
         Text("at least ", kLittleMemory / kMiB, " MiB"), "see what else runs there"});
}

void CheckClock(const HostLook& look, Findings& findings) {
  const double offset = look.clock_offset_s;
  if (std::abs(offset) - look.clock_uncertainty_s <= kMostClockOffset) return;
  findings.push_back(
      {false, "clock", Text(Number(std::abs(offset)), " s ", offset > 0 ? "ahead" : "behind"),
       "within 1 s of this host's", "let NTP or chrony set it; times in logs will not compare"});
}

}  // namespace

std::vector<Finding> FindingsOf(const HostLook& look, const HostLook& here) {
  Findings findings = look.reach;
  if (look.answered) {
    CheckInstallation(look.facts.installation, findings);
    CheckOpenMpi(look.facts.installation, here.facts.installation, findings);
    CheckProgram(look.facts.program, here.facts.program, findings);
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

}  // namespace dtrun::launcher
