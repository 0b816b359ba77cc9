#include "launcher/check_build.h"

#include <functional>
#include <vector>

#include "base/text.h"
#include "base/version.h"
#include "launcher/engine.h"
#include "launcher/launch_error.h"

namespace dtrun::launcher {
namespace {

using base::Text;

struct Part {
  const char* name;
  bool needed;  // to start any job
  std::function<std::string()> find;
};

std::string LibraryFile(const std::string& name) {
  for (const OwnLibrary& library : OwnLibraries())
    if (library.name == name && !library.file.empty()) return library.file;
  throw LaunchError(ExitCode::kUnavailable, "not installed beside dtrun");
}

}  // namespace

BuildReport CheckBuild(const std::string& path, Launcher launcher) {
  const std::vector<Part> parts = {
      {"mpirun", launcher == Launcher::kMpirun, [&] { return FindMpirun(path); }},
      {"dtrun_rank", true, [] { return FindHelper("dtrun_rank"); }},
      {"dtrun_agent", true, [] { return FindHelper("dtrun_agent"); }},
      {"dtrun_reach", true, [] { return FindHelper("dtrun_reach"); }},
      {"dtrun_local", true, [] { return FindHelper("dtrun_local"); }},
      {"libdtrun.so", false, [] { return LibraryFile("libdtrun.so.0"); }},
      {"libdtrun_mpi.so", false, [] { return LibraryFile("libdtrun_mpi.so"); }},
  };
  BuildReport report = {Text("dtrun ", base::kVersion, '\n'), true};
  for (const Part& part : parts) {
    try {
      report.text += Text("[x] ", part.name, ": ", part.find(), '\n');
    } catch (const LaunchError& error) {
      report.text += Text("[ ] ", part.name, ": ", error.what(), '\n');
      report.complete = report.complete && !part.needed;
    }
  }
  return report;
}

}  // namespace dtrun::launcher
