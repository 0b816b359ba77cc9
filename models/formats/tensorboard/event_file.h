#ifndef DTRUN_MODELS_FORMATS_TENSORBOARD_EVENT_FILE_H_
#define DTRUN_MODELS_FORMATS_TENSORBOARD_EVENT_FILE_H_

#include <cstdint>
#include <string>

namespace dtrun::models {

/// An event file that grows by whole records. Not thread-safe.
class EventFile {
 public:
  /// Makes the folder and in it a file of a new name, which begins with the format's version.
  /// Throws Error kSystem with the path and the reason.
  explicit EventFile(const std::string& folder);
  ~EventFile();
  EventFile(const EventFile&) = delete;
  EventFile& operator=(const EventFile&) = delete;

  /// Appends records. After an error, which `problem` then tells, the file ends with its last whole
  /// piece and stays as it is.
  void Append(const std::string& records);

  const std::string& path() const { return path_; }
  /// "logs/events...: cannot be written: No space left on device"; empty as long as all is well
  const std::string& problem() const { return problem_; }

 private:
  std::string path_, problem_;
  int file_ = -1;
  int64_t size_ = 0;
};

}  // namespace dtrun::models

#endif
