#ifndef DTRUN_LAUNCHER_RESULT_FILE_H_
#define DTRUN_LAUNCHER_RESULT_FILE_H_

#include <string>

namespace dtrun::launcher {

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

}  // namespace dtrun::launcher

#endif
