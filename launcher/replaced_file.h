#ifndef DTRUN_LAUNCHER_REPLACED_FILE_H_
#define DTRUN_LAUNCHER_REPLACED_FILE_H_

#include <string>

namespace dtrun::launcher {

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

#endif
