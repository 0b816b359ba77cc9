#ifndef DTRUN_LAUNCHER_SUPPORT_USER_FILES_H_
#define DTRUN_LAUNCHER_SUPPORT_USER_FILES_H_

#include <string>

namespace dtrun::launcher {

/// Text of a file that the user has named. Throws UsageError that begins with its name where it
/// cannot be read or is larger than 64 MiB.
std::string ReadUserFile(const std::string& path);

/// A file that is written when the job has ended, but opened before it starts: nobody wants to
/// learn after hours that a folder is missing. What stands in it stays until then. A new one is
/// this user's alone: commands and what programs say may hold secrets.
class ResultFile {
 public:
  /// Throws LaunchError kNoResult.
  explicit ResultFile(const std::string& path);
  ~ResultFile();
  ResultFile(const ResultFile&) = delete;
  ResultFile& operator=(const ResultFile&) = delete;

  /// Replaces the content. Throws LaunchError kNoResult.
  void Write(const std::string& text);
  /// The same in pieces, of which the first one replaces; Close is the end. Both throw LaunchError
  /// kNoResult.
  void Add(const std::string& piece);
  void Close();

 private:
  [[noreturn]] void Fail() const;

  std::string path_;
  int file_;
  bool begun_ = false;
};

/// A file that others read while it changes: each content takes the place of the one before by a
/// rename, so nobody ever sees a part of one. Readable by all.
class ReplacedFile {
 public:
  /// `path` may exist, as a regular file. Throws LaunchError kNoResult where it could not be
  /// written.
  explicit ReplacedFile(std::string path);

  /// Throws LaunchError kNoResult; then the content before it stays.
  void Replace(const std::string& text) const;

 private:
  std::string path_;
};

}  // namespace dtrun::launcher

#endif  // DTRUN_LAUNCHER_SUPPORT_USER_FILES_H_
