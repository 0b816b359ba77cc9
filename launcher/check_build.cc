#include "launcher/check_build.h"

#include <unistd.h>

#include <filesystem>
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

// The libraries stand in ../lib or, in the build tree, in the folders that make them.
std::string FindLibrary(const std::string& name, const std::string& built_in) {
  std::error_code error;
  const std::filesystem::path here =
      std::filesystem::read_symlink("/proc/self/exe", error).parent_path();
  for (const std::filesystem::path& folder : {here / "../lib", here / ".." / built_in}) {
    const std::filesystem::path file = (folder / name).lexically_normal();
    if (access(file.c_str(), R_OK) == 0) return file;
  }
  throw LaunchError(ExitCode::kUnavailable, "not installed beside dtrun");
}

}  // namespace

BuildReport CheckBuild(const std::string& path, Launcher launcher) {
  const std::vector<Part> parts = {
      {"mpirun", launcher == Launcher::kMpirun, [&] { return FindMpirun(path); }},
      {"dtrun_rank", true, [] { return FindHelper("dtrun_rank"); }},
      {"dtrun_agent", true, [] { return FindHelper("dtrun_agent"); }},
      {"dtrun_local", true, [] { return FindHelper("dtrun_local"); }},
      {"libdtrun.so", false, [] { return FindLibrary("libdtrun.so.0", "runtime"); }},
      {"libdtrun_mpi.so", false, [] { return FindLibrary("libdtrun_mpi.so", "runtime"); }},
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
