#ifndef DTRUN_LAUNCHER_PROTOCOL_JOB_FOLDER_H_
#define DTRUN_LAUNCHER_PROTOCOL_JOB_FOLDER_H_

#include <sys/types.h>

#include <string>

namespace dtrun::launcher {

/// The folder for the job's files on this machine, below `base` (mode 0700). MemoryFolder(path())
/// for Open MPI's shared memory belongs to it. Both exist as long as this object. A keeper process
/// removes them if this process is killed. If the keeper is killed too, the user's next JobFolder
/// in `base` removes them. The constructor forks, so the program must have one thread and no
/// children then.
class JobFolder {
 public:
  /// Makes the folder PathOf(base, name). If `name` is "" or taken, the name is random. With a
  /// name, the owner is an agent on another host, and the keeper continues a stopped owner. Throws
  /// LaunchError kUnavailable if `base` does not take a folder, kInternal if the keeper cannot
  /// start.
  explicit JobFolder(const std::string& base, const std::string& name = "");
  ~JobFolder();
  JobFolder(const JobFolder&) = delete;
  JobFolder& operator=(const JobFolder&) = delete;

  const std::string& path() const { return path_; }
  pid_t keeper() const { return keeper_; }

  /// If this process dies, the keeper waits for process `user` to end before it removes the folder.
  /// 0: it does not wait.
  void SetUser(pid_t user);

  /// The form of a random path, for --dry-run.
  static std::string Pattern(const std::string& base);
  /// The folder of this name below `base`.
  static std::string PathOf(const std::string& base, const std::string& name);

 private:
  void MakeByChance(const std::string& base);

  std::string path_;
  pid_t keeper_ = -1;
  int pipe_ = -1;
  int lock_ = -1;  // on a file in the folder
};

/// The folder for temporary files: $TMPDIR, or /tmp.
std::string FolderBase();

/// The folder in /dev/shm for job folder `path`. It may not exist. Open MPI then writes its files
/// directly into /dev/shm and leaves them there if it is killed.
std::string MemoryFolder(const std::string& path);

/// The file in MemoryFolder(path) in which a rank keeps the state of its training
/// (base/elastic_files.h), on hosts whose ranks are started again all together. Without that
/// folder, there is no room in memory, and the result is "".
std::string KeptStateFile(const std::string& path);
/// Removes what killed ranks have left in MemoryFolder(path): all but the files of dtrun. No rank
/// runs on this host.
void ClearMemoryFolder(const std::string& path);
/// Removes what a killed engine has left in the job folder. The engine does not run.
void ClearAfterEngine(const std::string& path);

/// The file in job folder `path` that holds the secret of the job's ranks.
std::string SecretFile(const std::string& path);
/// Writes the secret, readable only by this user. Throws LaunchError kInternal.
void WriteSecret(const std::string& path, const std::string& secret);

/// The folder for the flight records of this machine's ranks, part of job folder `path`. JobFolder
/// makes it, in memory if possible: a write to a file on a busy disk would block the rank.
std::string FlightFolder(const std::string& path);

}  // namespace dtrun::launcher

#endif
