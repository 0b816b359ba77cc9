#include "models/train/report.h"

#include <dtrun/error.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>

#include "models/message_text.h"

namespace dtrun::models {
namespace {

std::string Number(double value) {
  if (!std::isfinite(value)) return "null";
  char text[32];
  std::snprintf(text, sizeof text, "%.17g", value);
  return text;
}

std::string ToJson(const EpochResult& epoch) {
  return Text(
      "{\"loss\": ", Number(epoch.loss), ", \"train_accuracy\": ", Number(epoch.train_accuracy),
      ", \"test_loss\": ", Number(epoch.test_loss),
      ", \"test_accuracy\": ", Number(epoch.test_accuracy),
      ", \"seconds\": ", Number(epoch.seconds), ", \"images_per_s\": ", Number(epoch.images_per_s),
      ", \"exposed_share\": ", Number(epoch.exposed_share), "}");
}

std::string StepsMember(const std::vector<double>& losses) {
  if (losses.empty()) return "";
  std::string list;
  for (double loss : losses) list += Text(list.empty() ? "" : ", ", Number(loss));
  return Text(",\n \"steps\": [", list, "]");
}

// Only a regular file can be replaced. Devices and pipes are written directly.
bool IsSpecial(const std::string& path) {
  struct stat status {};
  return stat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode);
}

std::string TemporaryName(const std::string& path) { return Text(path, ".tmp.", getpid()); }

[[noreturn]] void CannotWrite(const std::string& path) {
  throw Error(ErrorCode::kSystem, Text(path, ": cannot be written: ", std::strerror(errno)));
}

// The destructor closes the file. It also deletes a temporary file that was not renamed.
class NewFile {
 public:
  NewFile(const std::string& name, const std::string& wanted)
      : name_(name), wanted_(wanted), special_(name == wanted) {
    const int flags = special_ ? O_WRONLY : O_WRONLY | O_CREAT | O_TRUNC;
    file_ = open(name.c_str(), flags | O_CLOEXEC, 0666);
    if (file_ < 0) CannotWrite(wanted_);
  }
  ~NewFile() {
    close(file_);
    if (!special_) unlink(name_.c_str());
  }
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  void Write(const std::string& text) {
    for (size_t done = 0; done < text.size();) {
      const ssize_t wrote = write(file_, text.data() + done, text.size() - done);
      if (wrote < 0 && errno != EINTR) CannotWrite(wanted_);
      if (wrote > 0) done += static_cast<size_t>(wrote);
    }
  }

  void Keep() {
    if (special_) return;
    if (fsync(file_) != 0 || rename(name_.c_str(), wanted_.c_str()) != 0) CannotWrite(wanted_);
  }

 private:
  std::string name_, wanted_;
  bool special_;
  int file_ = -1;
};

}  // namespace

std::string ToJson(const TrainingResult& result) {
  std::string epochs;
  for (const EpochResult& epoch : result.epochs)
    epochs += Text(epochs.empty() ? "\n  " : ",\n  ", ToJson(epoch));
  return Text(
      "{\"ranks\": ", result.ranks, ", \"test_accuracy\": ", Number(result.test_accuracy),
      ", \"test_loss\": ", Number(result.test_loss), ", \"parameter_digest\": \"",
      result.parameter_digest, "\",\n \"epochs\": [", epochs, "]", StepsMember(result.step_losses),
      "}\n");
}

std::string WhyNotWritable(const std::string& path) {
  try {
    NewFile file(IsSpecial(path) ? path : TemporaryName(path), path);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

void WriteAtomically(const std::string& path, const std::string& text) {
  NewFile file(IsSpecial(path) ? path : TemporaryName(path), path);
  file.Write(text);
  file.Keep();
}

}  // namespace dtrun::models
