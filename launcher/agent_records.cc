#include "launcher/agent_records.h"

#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

#include "base/flight_record.h"
#include "base/text.h"

namespace dtrun::launcher {
namespace {

using nlohmann::json;

void ForEachRecord(
    const std::string& folder, const std::function<void(int rank, const std::string& path)>& use) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const auto rank = base::ParseInteger(entry.path().filename().string());
    if (!rank || !entry.is_regular_file(error) || entry.is_symlink(error)) continue;
    use(static_cast<int>(*rank), entry.path());
  }
}

}  // namespace

std::vector<Frame> FlightFrames(const std::string& folder) {
  std::vector<Frame> frames;
  ForEachRecord(folder, [&](int rank, const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    std::string bytes(kMostBody, '\0');
    file.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    bytes.resize(static_cast<size_t>(file.gcount()));
    frames.push_back({FrameType::kFlight, rank, std::move(bytes)});
  });
  return frames;
}

Frame ProgressFrame(const std::string& folder) {
  json ranks = json::array();
  ForEachRecord(folder, [&](int rank, const std::string& path) {
    const auto progress = base::ReadFlightProgress(path);
    if (!progress || progress->rank != rank) return;
    ranks.push_back(
        {{"rank", rank},
         {"step", progress->step},
         {"examples", progress->examples},
         {"waited_ns", progress->waited_ns}});
  });
  return {FrameType::kProgress, -1, ranks.dump()};
}

}  // namespace dtrun::launcher
