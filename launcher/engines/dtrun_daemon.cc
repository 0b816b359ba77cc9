// dtrun_daemon FOLDER NETWORKS ORTED ARGUMENT...: what mpirun starts on another host in orted's
// place (orte_launch_agent). It becomes orted, with
//
// - the job's folder on that host for its files, FOLDER in the folder for temporary files, which
//   the agent of the host has made: orted's own choice has a name that everybody can guess;
// - dtrun_listen.so, so that it listens in NETWORKS alone; "-": wherever it likes;
// - what its ranks leave behind as its children, so that the agent can find it.

#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "base/launch_env.h"
#include "base/text.h"
#include "launcher/protocol/job_folder.h"
#include "launcher/support/launch_error.h"

namespace dtrun::launcher {
namespace {

using base::Text;

std::string HostName() {
  char name[256] = {};
  gethostname(name, sizeof name - 1);
  return name;
}

// Nobody else can have put a file there.
bool IsPrivateFolder(const std::string& path) {
  struct stat status;
  return lstat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode) &&
         status.st_uid == geteuid() && (status.st_mode & (S_IRWXG | S_IRWXO)) == 0;
}

// mpirun hands on where its own files are (orte_local_tmpdir_base), and an orted of many hosts
// where its own are. Open MPI 4.1 does not look at orte_remote_tmpdir_base, and takes only one of
// the two. False where nothing was said of it.
bool PutFilesIn(char* folder, char** words) {
  static char parameter[] = "orte_tmpdir_base";
  unsetenv("OMPI_MCA_orte_local_tmpdir_base");  // where the remote shell hands on variables
  for (; words[0] != nullptr && words[1] != nullptr; ++words) {
    if (std::strcmp(words[0], "orte_local_tmpdir_base") != 0 &&
        std::strcmp(words[0], parameter) != 0)
      continue;
    words[0] = parameter;
    words[1] = folder;
    return true;
  }
  return false;
}

void Preload(const std::string& networks) {
  std::error_code error;
  const auto own = std::filesystem::read_symlink("/proc/self/exe", error);
  const std::string library = own.parent_path() / "dtrun_listen.so";
  if (error || access(library.c_str(), R_OK) != 0) return;
  const std::string others = base::ProcessEnv("LD_PRELOAD").value_or("");
  setenv("LD_PRELOAD", (others.empty() ? library : library + ":" + others).c_str(), 1);
  setenv("DTRUN_LISTEN_IN", networks.c_str(), 1);
}

int Fail(const std::string& why, ExitCode code) {
  std::fprintf(stderr, "dtrun: %s: %s\n", HostName().c_str(), why.c_str());
  return static_cast<int>(code);
}

int Main(char** words) {
  std::string folder = JobFolder::PathOf(FolderBase(), words[1]);
  const std::string networks = words[2];
  char** command = words + 3;
  if (!IsPrivateFolder(folder))
    return Fail(Text("there is no folder ", folder, " of this job"), ExitCode::kInternal);
  if (!PutFilesIn(folder.data(), command))
    return Fail("mpirun has not said where its files are", ExitCode::kInternal);
  if (networks != "-") Preload(networks);
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  execvp(command[0], command);
  return Fail(
      Text("Open MPI's ", command[0], " cannot be run: ", std::strerror(errno)),
      ExitCode::kUnavailable);
}

}  // namespace
}  // namespace dtrun::launcher

int main(int argc, char** argv) {
  if (argc >= 4) return dtrun::launcher::Main(argv);
  std::fputs("dtrun: dtrun_daemon is started by mpirun, not by hand\n", stderr);
  return static_cast<int>(dtrun::launcher::ExitCode::kUsage);
}
