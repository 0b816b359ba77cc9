#include "launcher/protocol/frame.h"

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "launcher/support/launch_error.h"

namespace dtrun::launcher {
namespace {

std::vector<Frame> ReadAll(FrameReader& reader) {
  std::vector<Frame> frames;
  while (const auto frame = reader.Next()) frames.push_back(*frame);
  return frames;
}

TEST_CASE("text in place of a message is reported with its first line") {
  const auto [text, quoted] = GENERATE(table<std::string, std::string>({
      {"Welcome to h2\nas of today\n", "'Welcome to h2'"},
      {"\r\n\n\nhello\n", "hello"},
      {std::string(5000, 'x'), "(5000 characters)"},
  }));
  FrameReader reader;
  reader.Feed(text.data(), text.size());
  CHECK_THROWS_WITH(
      reader.Next(), Catch::Contains("found the text") && Catch::Contains(quoted) &&
                         Catch::EndsWith("; expected a message of dtrun"));
}

TEST_CASE("frames arrive unchanged however the bytes are split") {
  const std::vector<Frame> sent = {
      {FrameType::kOutput, 3, std::string("\1a\0\n\xff", 5)},
      {FrameType::kPing},
      {FrameType::kJob, -1, std::string(70'000, 'x')},
      {FrameType::kEnded, 1'000'000, "{}"},
  };
  std::string bytes;
  for (const Frame& frame : sent) bytes += Encode(frame);
  const size_t piece = GENERATE(1, 2, 7, 4096, 1'000'000);
  FrameReader reader;
  std::vector<Frame> received;
  for (size_t at = 0; at < bytes.size(); at += piece) {
    const std::string cut = bytes.substr(at, piece);
    reader.Feed(cut.data(), cut.size());
    for (const Frame& frame : ReadAll(reader)) received.push_back(frame);
  }
  CHECK(received == sent);
  CHECK_FALSE(reader.in_frame());
}

TEST_CASE("bytes that are no frame are refused before memory is allocated") {
  FrameReader reader;
  const std::string bytes = GENERATE(
      as<std::string>(), "Last login: Sat Nov 21", std::string("\xff\xff\xff\xff\x01\0\0\0\0", 9),
      std::string("\0\0\0\0\x77\0\0\0\0", 9));
  reader.Feed(bytes.data(), bytes.size());
  CHECK_THROWS_AS(reader.Next(), LaunchError);
}

TEST_CASE("an incomplete frame waits for its missing bytes") {
  const std::string bytes = Encode({FrameType::kWelcome, 0, "{\"folder\": \"/tmp\"}"});
  FrameReader reader;
  reader.Feed(bytes.data(), bytes.size() - 1);
  CHECK(reader.Next() == std::nullopt);
  CHECK(reader.in_frame());
}

TEST_CASE("a body larger than the limit is not sent") {
  CHECK_THROWS_AS(Encode({FrameType::kFlight, 0, std::string(kMostBody + 1, 'x')}), LaunchError);
}

}  // namespace
}  // namespace dtrun::launcher
