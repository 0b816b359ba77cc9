#include "launcher/flight_frames.h"

#include <filesystem>
#include <fstream>
#include <utility>

#include "base/text.h"

namespace dtrun::launcher {

std::vector<Frame> FlightFrames(const std::string& folder) {
  std::vector<Frame> frames;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const auto rank = base::ParseInteger(entry.path().filename().string());
    if (!rank || !entry.is_regular_file(error) || entry.is_symlink(error)) continue;
    std::ifstream file(entry.path(), std::ios::binary);
    std::string bytes(kMostBody, '\0');
    file.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    bytes.resize(static_cast<size_t>(file.gcount()));
    frames.push_back({FrameType::kFlight, static_cast<int32_t>(*rank), std::move(bytes)});
  }
  return frames;
}

}  // namespace dtrun::launcher
