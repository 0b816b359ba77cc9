#include "launcher/user_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/text.h"
#include "launcher/launch_error.h"
#include "launcher/quoting.h"

namespace dtrun::launcher {

std::string ReadUserFile(const std::string& path) {
  constexpr size_t kMaxBytes = size_t{64} << 20;
  const auto refuse = [&](const std::string& why) {
    throw UsageError(base::Text(Excerpt(path), ": ", why));
  };
  struct File {
    int descriptor;
    ~File() { close(descriptor); }
  } file = {open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  if (file.descriptor < 0) refuse(std::strerror(errno));
  std::string text;
  char buffer[1 << 16];
  for (;;) {
    const ssize_t got = read(file.descriptor, buffer, sizeof buffer);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) refuse(std::strerror(errno));
    if (got == 0) return text;
    text.append(buffer, static_cast<size_t>(got));
    if (text.size() > kMaxBytes) refuse("larger than 64 MiB");
  }
}

}  // namespace dtrun::launcher
