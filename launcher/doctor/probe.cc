// dtrun_probe: what dtrun doctor runs on each host, by ssh or as a child. It greets, gets a
// request (a line of JSON), tells its clock at once and then the facts of its host, and ends. It
// runs no program but mpirun, for its version, and the system's loader, which lists libraries.

#include <limits.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <iostream>
#include <string>
#include <thread>

#include "base/version.h"
#include "launcher/doctor/checksum.h"
#include "launcher/doctor/gpus.h"
#include "launcher/doctor/host_facts.h"
#include "launcher/doctor/libraries.h"
#include "launcher/doctor/machine.h"
#include "launcher/engine.h"
#include "launcher/launch_error.h"
#include "launcher/program.h"

namespace dtrun::launcher {
namespace {

using nlohmann::json;

InstallationFacts FindInstallation(const ProbeRequest& request) {
  InstallationFacts facts;
  for (const char* name : {"dtrun_rank", "dtrun_agent"}) {
    try {
      FindHelper(name);
    } catch (const LaunchError& error) {
      facts.missing_files.push_back(name);
    }
  }
  for (const OwnLibrary& library : OwnLibraries()) {
    if (library.file.empty()) continue;  // a program may bring its own
    for (const std::string& missing : MissingLibraries(library.file, request.library_path))
      facts.missing_libraries.push_back(missing + " (for " + library.file + ")");
  }
  std::error_code ignored;
  if (request.mpirun.empty() || !std::filesystem::exists(request.mpirun, ignored)) return facts;
  facts.mpirun = request.mpirun;
  facts.mpirun_version = MpirunVersion(request.mpirun);
  const auto orted = std::filesystem::path(request.mpirun).parent_path() / "orted";
  // Open MPI 5 calls it prted.
  const auto prted = std::filesystem::path(request.mpirun).parent_path() / "prted";
  facts.has_orted =
      std::filesystem::exists(orted, ignored) || std::filesystem::exists(prted, ignored);
  return facts;
}

ProgramFacts ExamineProgram(const ProbeRequest& request) {
  ProgramFacts facts = {request.program, "", "", {}};
  if (request.program.empty()) return facts;
  try {
    std::error_code error;
    if (request.program.front() != '/') std::filesystem::current_path(request.cwd, error);
    if (error)
      throw LaunchError(ExitCode::kNotFound, "there is no folder " + request.cwd + " to look in");
    FindProgram(request.program, "");
    facts.missing_libraries = MissingLibraries(request.program, request.library_path);
  } catch (const LaunchError& error) {
    facts.problem = error.what();
  }
  if (!std::filesystem::is_directory(request.program)) facts.sha256 = Sha256OfFile(request.program);
  return facts;
}

std::string HostName() {
  char name[HOST_NAME_MAX + 1] = {};
  gethostname(name, HOST_NAME_MAX);
  return name;
}

// dtrun holds the channel open until it has the facts: who sees it end has no one to tell.
void EndWithChannel() {
  std::thread([] {
    char byte;
    while (read(STDIN_FILENO, &byte, 1) > 0) {
    }
    _exit(1);
  }).detach();
}

int Main() {
  std::cout << kProbeGreeting << ' ' << base::kVersion << std::endl;
  std::string line;
  if (!std::getline(std::cin, line)) return 1;
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  std::cout << kProbeClock << ' ' << int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec << std::endl;
  const auto request = json::parse(line).get<ProbeRequest>();
  alarm(static_cast<unsigned>(request.seconds));
  EndWithChannel();
  const HostFacts facts = {
      .host_name = HostName(),
      .installation = FindInstallation(request),
      .program = ExamineProgram(request),
      .cpus = OwnCpus(),
      .memory = OwnMemory(),
      .gpus = OwnGpus(),
      .interfaces = OwnInterfaces()};
  std::cout << json(facts).dump(-1, ' ', true, json::error_handler_t::replace) << std::endl;
  _exit(0);  // the thread that reads stdin does not end by itself
}

}  // namespace
}  // namespace dtrun::launcher

int main() {
  if (isatty(STDIN_FILENO) != 0) {
    std::fputs("dtrun: dtrun_probe is started by dtrun doctor, not by hand\n", stderr);
    return static_cast<int>(dtrun::launcher::ExitCode::kUsage);
  }
  try {
    return dtrun::launcher::Main();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "dtrun_probe: %s\n", error.what());
    return static_cast<int>(dtrun::launcher::ExitCode::kInternal);
  }
}
