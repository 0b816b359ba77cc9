// dtrun_daemon FOLDER NETWORKS ORTED ARGUMENT...: mpirun starts this program on another host in
// place of orted (orte_launch_agent) or, with Open MPI 5, of prted. It prepares the environment and
// then becomes orted:
//
// - orted puts its files into the job's folder on that host, which the agent of the host has made.
//   FOLDER is its name in the folder for temporary files; the agent of a host that came later has
//   added its number. orted's own choice has a name that other users can guess.
// - dtrun_listen.so makes orted listen only in NETWORKS; "-": at all addresses.
// - Orphans of the ranks become children of orted, where the agent finds them.

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

// Whether only this user has access to the folder.
bool IsPrivateFolder(const std::string& path) {
  struct stat status;
  return lstat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode) &&
         status.st_uid == geteuid() && (status.st_mode & (S_IRWXG | S_IRWXO)) == 0;
}

// FOLDER, or FOLDER-7 of the latest agent: one that was lost may have left its own.
std::string FindFolder(const std::string& name) {
  const std::filesystem::path first = JobFolder::PathOf(FolderBase(), name);
  const std::string start = first.filename().string() + "-";
  std::string found = first;
  int64_t latest = -1;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(first.parent_path(), error)) {
    const std::string each = entry.path().filename().string();
    if (!each.starts_with(start) || !IsPrivateFolder(entry.path())) continue;
    const int64_t number = base::ParseInteger(each.substr(start.size())).value_or(-1);
    if (number > latest) latest = number, found = entry.path();
  }
  return found;
}

// mpirun passes the folder of its own files (orte_local_tmpdir_base) to orted. An orted that starts
// further orteds passes its own folder (orte_tmpdir_base). This function replaces either by
// `folder`. Open MPI 4.1 ignores orte_remote_tmpdir_base and takes only one of the two. In Open MPI
// 5 the names begin with "prte". Returns false if neither was passed.
bool PutFilesIn(char* folder, char** words) {
  static char parameters[][32] = {"orte_tmpdir_base", "prte_tmpdir_base"};
  // Set if the remote shell forwards variables.
  unsetenv("OMPI_MCA_orte_local_tmpdir_base");
  unsetenv("PRTE_MCA_prte_local_tmpdir_base");
  for (; words[0] != nullptr && words[1] != nullptr; ++words)
    for (char* parameter : parameters) {
      const std::string mpirun = Text(std::string(parameter, 4), "_local_tmpdir_base");
      if (words[0] != mpirun && std::strcmp(words[0], parameter) != 0) continue;
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
  std::string folder = FindFolder(words[1]);
  const std::string networks = words[2];
  char** command = words + 3;
  if (!IsPrivateFolder(folder))
    return Fail(
        Text("the job's folder ", folder, " is missing, or other users may use the folder"),
        ExitCode::kInternal);
  if (!PutFilesIn(folder.data(), command))
    return Fail("mpirun passed no folder for its files", ExitCode::kInternal);
  if (networks != "-") Preload(networks);
  setenv("HOME", "/", 0);  // without it, prted 3.0 crashes
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
