#ifndef DTRUN_LAUNCHER_SUPPORT_USER_FILES_H_
#define DTRUN_LAUNCHER_SUPPORT_USER_FILES_H_

#include <string>

namespace dtrun::launcher {

/// The text of a file that the user has named. Throws UsageError, with the file's name first, if
/// the file cannot be read or is larger than 64 MiB.
std::string ReadUserFile(const std::string& path);

/// A result file that is written after the job has ended. It is opened before the job starts, so
/// that a missing folder is reported at once. Old content stays until then. A new file is readable
/// only by this user, because commands and output may hold secrets.
class ResultFile {
 public:
  /// Throws LaunchError kNoResult.
  explicit ResultFile(const std::string& path);
  ~ResultFile();
  ResultFile(const ResultFile&) = delete;
  ResultFile& operator=(const ResultFile&) = delete;

  /// Replaces the content. Throws LaunchError kNoResult.
  void Write(const std::string& text);
  /// The same in pieces: the first piece replaces the content, Close ends it. Both throw
  /// LaunchError kNoResult.
  void Add(const std::string& piece);
  void Close();

 private:
  [[noreturn]] void Fail() const;

  std::string path_;
  int file_;
  bool begun_ = false;
};

/// A file that other programs read while it changes. Each new content replaces the old by a rename,
/// so readers never see a part of it. Readable by all users.
class ReplacedFile {
 public:
  /// `path` may exist as a regular file. Throws LaunchError kNoResult if it is another kind of
  /// file.
  explicit ReplacedFile(std::string path);

  /// Throws LaunchError kNoResult; the old content then stays.
  void Replace(const std::string& text) const;

 private:
  std::string path_;
};

}  // namespace dtrun::launcher

#endif  // DTRUN_LAUNCHER_SUPPORT_USER_FILES_H_
