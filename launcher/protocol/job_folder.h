#ifndef DTRUN_LAUNCHER_PROTOCOL_JOB_FOLDER_H_
#define DTRUN_LAUNCHER_PROTOCOL_JOB_FOLDER_H_

#include <sys/types.h>

#include <string>

namespace dtrun::launcher {

/// The place for the job's files on this machine: a folder below `base` (mode 0700), and with it
/// the folder MemoryFolder(path()) for Open MPI's shared memory. Both live as long as this object,
/// and a keeper process removes them even when this one is killed; if the keeper is killed too, the
/// next JobFolder of this user in `base` does. Nothing else of this program may
/// run while it is made: one thread, no child yet.
class JobFolder {
 public:
  /// The folder PathOf(base, name); "", or a name that is taken: one by chance. With a name, the
  /// owner is an agent on another host, and the keeper continues it when something has stopped it.
  /// Throws LaunchError kUnavailable when `base` does not take a folder, kInternal for want of a
  /// process.
  explicit JobFolder(const std::string& base, const std::string& name = "");
  ~JobFolder();
  JobFolder(const JobFolder&) = delete;
  JobFolder& operator=(const JobFolder&) = delete;

  const std::string& path() const { return path_; }
  pid_t keeper() const { return keeper_; }

  /// Without its owner, the folder goes when process `user` has ended; 0: at once.
  void SetUser(pid_t user);

  /// What the path will look like: for --dry-run.
  static std::string Pattern(const std::string& base);
  /// The folder of this name below `base`.
  static std::string PathOf(const std::string& base, const std::string& name);

 private:
  void MakeByChance(const std::string& base);

  std::string path_;
  pid_t keeper_ = -1;
  int pipe_ = -1;
  int lock_ = -1;  // of a file in the folder
};

/// The folder for temporary files of this process: $TMPDIR, else /tmp.
std::string FolderBase();

/// The folder in /dev/shm that belongs to job folder `path`. It may not exist; Open MPI then puts
/// its files right into /dev/shm and leaves them there when it is killed.
std::string MemoryFolder(const std::string& path);

/// The file in job folder `path` with what only the job's ranks know (WriteSecret).
std::string SecretFile(const std::string& path);
/// Writes it, for this user alone. Throws LaunchError kInternal.
void WriteSecret(const std::string& path, const std::string& secret);

/// The folder for the flight records of the ranks on this machine, which belongs to job folder
/// `path`: in memory if possible, since a rank would wait for a disk that is busy whenever it
/// writes to a file of it. JobFolder makes it.
std::string FlightFolder(const std::string& path);

}  // namespace dtrun::launcher

#endif
