#include "launcher/protocol/frame.h"

#include <algorithm>
#include <string_view>

#include "base/text.h"
#include "launcher/support/launch_error.h"
#include "launcher/support/quoting.h"

namespace dtrun::launcher {
namespace {

constexpr size_t kHeader = 9;

void Append32(std::string& bytes, uint32_t value) {
  for (int shift = 0; shift < 32; shift += 8) bytes += static_cast<char>(value >> shift & 0xff);
}

uint32_t Read32(const char* bytes) {
  uint32_t value = 0;
  for (int i = 3; i >= 0; --i) value = value << 8 | static_cast<unsigned char>(bytes[i]);
  return value;
}

// No default case, so the compiler reports a forgotten type.
bool IsType(uint8_t type) {
  switch (static_cast<FrameType>(type)) {
    case FrameType::kJob:
    case FrameType::kPing:
    case FrameType::kEnd:
    case FrameType::kNotice:
    case FrameType::kStop:
    case FrameType::kContinue:
    case FrameType::kInput:
    case FrameType::kAskProgress:
    case FrameType::kPeers:
    case FrameType::kRankEnded:
    case FrameType::kTerminate:
    case FrameType::kEpoch:
    case FrameType::kRestart:
    case FrameType::kFault:
    case FrameType::kReady:
    case FrameType::kRefused:
    case FrameType::kStarted:
    case FrameType::kOutput:
    case FrameType::kEnded:
    case FrameType::kFlight:
    case FrameType::kPong:
    case FrameType::kDone:
    case FrameType::kNoticed:
    case FrameType::kStopped:
    case FrameType::kTaken:
    case FrameType::kProgress:
    case FrameType::kTrace:
    case FrameType::kState:
    case FrameType::kRoutes:
    case FrameType::kHello:
    case FrameType::kWelcome:
    case FrameType::kProgram:
    case FrameType::kExit:
    case FrameType::kTakes:
    case FrameType::kVariable:
    case FrameType::kWord:
    case FrameType::kLaunch:
    case FrameType::kSignal:
    case FrameType::kCode: return true;
  }
  return false;
}

// The first line if the bytes are text, for example from a login shell; otherwise "". Four letters
// are never the length of a frame, because they exceed kMostBody.
std::string LineOf(std::string_view bytes) {
  const auto is_text = [](char c) { return c == '\n' || c == '\r' || c == '\t' || c >= ' '; };
  constexpr size_t kLength = 4;
  if (bytes.size() < kLength || !std::all_of(bytes.begin(), bytes.begin() + kLength, is_text))
    return "";
  const size_t begin = std::min(bytes.find_first_not_of(" \t\r\n"), bytes.size());
  bytes.remove_prefix(begin);
  return std::string(bytes.substr(0, bytes.find_first_of("\r\n")));
}

}  // namespace

std::string Encode(const Frame& frame) {
  if (frame.body.size() > kMostBody)
    throw LaunchError(
        ExitCode::kInternal, base::Text(
                                 "a message between dtrun and an agent has ", frame.body.size(),
                                 " bytes; expected at most ", kMostBody));
  std::string bytes;
  bytes.reserve(kHeader + frame.body.size());
  Append32(bytes, static_cast<uint32_t>(frame.body.size()));
  bytes += static_cast<char>(frame.type);
  Append32(bytes, static_cast<uint32_t>(frame.rank));
  return bytes + frame.body;
}

std::optional<Frame> FrameReader::Next() {
  const size_t there = bytes_.size() - start_;
  if (there < kHeader) return std::nullopt;
  const char* header = bytes_.data() + start_;
  const size_t length = Read32(header);
  const auto type = static_cast<uint8_t>(header[4]);
  if (const std::string text = LineOf(std::string_view(bytes_).substr(start_)); !text.empty())
    throw LaunchError(
        ExitCode::kInternal,
        base::Text("found the text ", Excerpt(text), "; expected a message of dtrun"));
  if (length > kMostBody || !IsType(type))
    throw LaunchError(
        ExitCode::kInternal, base::Text(
                                 "found a message of type ", int{type}, " and ", length,
                                 " bytes; expected a message of dtrun"));
  if (there < kHeader + length) return std::nullopt;
  Frame frame{
      static_cast<FrameType>(type), static_cast<int32_t>(Read32(header + 5)),
      bytes_.substr(start_ + kHeader, length)};
  start_ += kHeader + length;
  // Erases the frames already read once they fill more than half of the buffer.
  if (start_ > bytes_.size() / 2) {
    bytes_.erase(0, start_);
    start_ = 0;
  }
  return frame;
}

}  // namespace dtrun::launcher
