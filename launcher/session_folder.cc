#include "launcher/session_folder.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "base/launch_env.h"

namespace dtrun::launcher {
namespace {

bool IsOwnFolder(const std::filesystem::path& path) {
  struct stat status;
  return lstat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode) && status.st_uid == geteuid();
}

}  // namespace

std::string OwnSessionFolder() {
  return base::ProcessEnv("OMPI_MCA_orte_jobfam_session_dir").value_or("");
}

void RemoveSessionFolder(const std::string& folder) {
  const std::filesystem::path path = folder;
  const std::filesystem::path above = path.parent_path();
  if (!path.is_absolute() || !path.filename().string().starts_with("jf.") ||
      !above.filename().string().starts_with("ompi.") || !IsOwnFolder(above) || !IsOwnFolder(path))
    return;
  std::error_code ignored;
  std::filesystem::remove_all(path, ignored);
  rmdir(above.c_str());  // another job may still use it
}

}  // namespace dtrun::launcher
