#include "launcher/system_file.h"

#include <fstream>
#include <sstream>

namespace dtrun::launcher {

// An iterator over the stream would throw what the system says.
std::optional<std::string> ReadFileOfSystem(const std::string& path) {
  const std::ifstream stream(path, std::ios::binary);
  if (!stream) return std::nullopt;
  std::ostringstream text;
  text << stream.rdbuf();
  return text.str();
}

}  // namespace dtrun::launcher
