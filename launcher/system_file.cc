#include "launcher/system_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

namespace dtrun::launcher {

// Not by a stream: that throws where a read fails.
std::optional<std::string> ReadFileOfSystem(const std::string& path) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return std::nullopt;
  std::string text;
  char bytes[4096];
  ssize_t got = 0;
  do {
    got = read(file, bytes, sizeof bytes);
    if (got > 0) text.append(bytes, static_cast<size_t>(got));
  } while (got > 0 || (got < 0 && errno == EINTR));
  close(file);
  return got < 0 ? std::nullopt : std::optional(std::move(text));
}

}  // namespace dtrun::launcher
