#include "models/formats/tensorboard/event_file.h"

#include <dtrun/error.h>
#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <system_error>

#include "models/formats/tensorboard/events.h"
#include "models/formats/tensorboard/record.h"
#include "models/text.h"

namespace dtrun::models {
namespace {

std::string Because(const std::string& path, const std::string& what, int error) {
  return Text(path, ": ", what, ": ", std::generic_category().message(error));
}

std::string HostName() {
  char name[256] = {};
  if (gethostname(name, sizeof name - 1) != 0) return "localhost";
  return name;
}

double SecondsSince1970() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// TensorBoard reads the files of a folder in the order of their names.
std::string NewName(double now) {
  static std::atomic<int> made = 0;
  char seconds[24];
  std::snprintf(seconds, sizeof seconds, "%010lld", static_cast<long long>(now));
  return Text("events.out.tfevents.", seconds, ".", HostName(), ".", getpid(), ".", made++);
}

}  // namespace

EventFile::EventFile(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) throw Error(ErrorCode::kSystem, Because(folder, "cannot be made", error.value()));
  const double now = SecondsSince1970();
  path_ = std::filesystem::path(folder) / NewName(now);
  file_ = open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (file_ < 0) throw Error(ErrorCode::kSystem, Because(path_, "cannot be made", errno));
  Append(ToRecord(VersionEvent(now)));
  if (problem_.empty()) return;
  close(file_);
  unlink(path_.c_str());
  throw Error(ErrorCode::kSystem, problem_);
}

EventFile::~EventFile() { close(file_); }

void EventFile::Append(const std::string& records) {
  if (!problem_.empty()) return;
  for (size_t done = 0; done < records.size();) {
    const ssize_t wrote = write(file_, records.data() + done, records.size() - done);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) {
      problem_ = Because(path_, "cannot be written", errno);
      // Where even that fails, readers find a record that is not whole and stop before it.
      [[maybe_unused]] const int cut = ftruncate(file_, size_);
      return;
    }
    done += static_cast<size_t>(wrote);
  }
  size_ += static_cast<int64_t>(records.size());
}

}  // namespace dtrun::models
